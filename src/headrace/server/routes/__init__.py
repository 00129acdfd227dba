"""Endpoints, one file per API family: read the request, run it, answer whole or as a stream.

Each is a function request → response; errors are raised and become OpenAI bodies in `errors`.
"""
