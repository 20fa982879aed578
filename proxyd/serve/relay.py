"""One TCP connection carried over to an endpoint: bytes both ways, each way ending by itself, nothing piled up."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import struct

from proxyd.desired.endpoints import Backend

# The most that is under way in one direction inside this process.
CHUNK = 64 * 1024
# After this many seconds of silence the other end is asked whether it is still there, as often until it counts as gone
# (Go's defaults, and so kube-proxy's): an endpoint whose node has failed says nothing.
KEEPALIVE_SECONDS = 15
KEEPALIVE_PROBES = 9

_RESET = struct.pack("ii", 1, 0)


async def dial(backend: Backend, timeout: float) -> socket.socket:
    """A connection to an endpoint. Raises ``OSError`` (``TimeoutError`` after ``timeout`` seconds)."""
    sock = socket.socket(socket.AF_INET6 if ":" in backend.address else socket.AF_INET, socket.SOCK_STREAM)
    try:
        sock.setblocking(False)
        _keep_alive(sock)
        async with asyncio.timeout(timeout):
            await asyncio.get_running_loop().sock_connect(sock, backend)
    except BaseException:
        sock.close()
        raise
    return sock


async def relay(client: socket.socket, endpoint: socket.socket) -> None:
    """Carries bytes both ways until both have ended, and closes both sockets.

    If either way fails, or this is cancelled, both are reset: nobody may take half of an answer for a whole one.
    """
    whole = False
    try:
        for sock in (client, endpoint):
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        async with asyncio.TaskGroup() as ways:
            ways.create_task(_carry(client, endpoint))
            ways.create_task(_carry(endpoint, client))
        whole = True
    except* OSError:
        pass
    finally:
        for sock in (client, endpoint):
            if whole:
                sock.close()
            else:
                reset(sock)


def reset(sock: socket.socket) -> None:
    """Ends a connection in a way that the other end cannot take for a regular end."""
    with contextlib.suppress(OSError):
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
    sock.close()


async def _carry(source: socket.socket, sink: socket.socket) -> None:
    """One way. Reads no more than the other end has taken, so a slow reader slows its sender down."""
    loop = asyncio.get_running_loop()
    while data := await loop.sock_recv(source, CHUNK):
        await loop.sock_sendall(sink, data)
        # Neither waits while bytes and room are there; others must have their turn nevertheless.
        await asyncio.sleep(0)
    sink.shutdown(socket.SHUT_WR)


def _keep_alive(sock: socket.socket) -> None:
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, KEEPALIVE_SECONDS)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, KEEPALIVE_SECONDS)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, KEEPALIVE_PROBES)
