"""What the API reads and writes, as msgspec structs: types, ranges and maxima of every field; no behaviour.

Requests refuse unknown fields and accept null for whatever may be left out. The OpenAPI document is made of these.
"""
