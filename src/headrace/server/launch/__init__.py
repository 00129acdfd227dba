"""Starting and stopping a server process: the address, the engine child, uvicorn, signals, the banner.

Nothing here is needed to serve the application in another ASGI server.
"""
