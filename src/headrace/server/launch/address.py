"""The listening socket: TCP or Unix domain, taken before anything else is started."""

from __future__ import annotations

import contextlib
import errno
import os
import socket
import stat

from headrace.config.server import ServerConfig
from headrace.core.errors import ConfigError

_BACKLOG = 2048


def listen(config: ServerConfig) -> socket.socket:
    """A socket that already listens, so that no second server can take the address. Raises ConfigError."""
    return _listen_unix(config.uds) if config.uds is not None else _listen_tcp(config.host, config.port)


def _listen_tcp(host: str, port: int) -> socket.socket:
    try:
        family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    except OSError as error:
        raise ConfigError(f"host {host!r} is no address of this machine: {error.strerror}", param="host") from None
    sock = socket.socket(family, socket.SOCK_STREAM)
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.bind(address)
        sock.listen(_BACKLOG)
    except OSError as error:
        sock.close()
        if error.errno == errno.EADDRINUSE:
            raise ConfigError(
                f"port {port} on {host} is in use by another program; stop it or choose another with --port",
                param="port",
            ) from None
        raise ConfigError(f"cannot listen on {host} port {port}: {error.strerror}", param="host") from None
    return sock


def _listen_unix(path: str) -> socket.socket:
    _clear_stale(path)
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        sock.bind(path)
        sock.listen(_BACKLOG)
    except OSError as error:
        sock.close()
        raise ConfigError(f"cannot listen on {path}: {error.strerror or error}", param="uds") from None
    return sock


def _clear_stale(path: str) -> None:
    """Remove a socket file that a dead server left behind; refuse one that somebody answers, and other files."""
    try:
        is_socket = stat.S_ISSOCK(os.stat(path).st_mode)
    except OSError:
        return
    if not is_socket:
        raise ConfigError(f"{path} exists and is no socket; remove it or choose another --uds", param="uds")
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.settimeout(1.0)
        try:
            probe.connect(path)
        except ConnectionRefusedError:
            os.unlink(path)
            return
        except OSError:
            pass
    raise ConfigError(f"another server listens on {path}; stop it or choose another --uds", param="uds")


def release(sock: socket.socket, config: ServerConfig) -> None:
    """Close the socket, and remove the file of a Unix one."""
    sock.close()
    if config.uds is not None:
        with contextlib.suppress(OSError):
            os.unlink(config.uds)


def url(sock: socket.socket, config: ServerConfig) -> str:
    """Where clients on this machine reach the server; a wildcard address is written as loopback."""
    if config.uds is not None:
        return "http://localhost"
    host, port = sock.getsockname()[:2]
    host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
