"""The engine in a process of its own, seen from the server: the child and the asyncio client of it.

`child` is light, since it starts first and everything else is imported meanwhile; `remote` needs asyncio. Neither
imports the engine.
"""
