"""A reverse proxy that serves another server of this machine under a path, as nginx's ``location
/rig/`` does.
"""

from __future__ import annotations

import asyncio
import contextlib
import queue
import threading
from collections.abc import Iterator

PREFIX = b"/rig/"


@contextlib.contextmanager
def path_proxy(port: int) -> Iterator[str]:
    """Yield the address under which 127.0.0.1:``port`` is served; other paths are answered with
    404.
    """

    async def serve(near: asyncio.StreamReader, answer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError, asyncio.IncompleteReadError), contextlib.closing(answer):
            head = await near.readuntil(b"\r\n\r\n")
            method, path, rest = head.split(b" ", 2)
            if not path.startswith(PREFIX):
                answer.write(
                    b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"
                )
                return
            if (
                b"upgrade: websocket" not in rest.lower()
            ):  # one request per connection: each needs its path rewritten
                rest = rest.replace(b"keep-alive", b"close")
            far, request = await asyncio.open_connection("127.0.0.1", port)
            with contextlib.closing(request):
                request.write(b" ".join([method, b"/" + path.removeprefix(PREFIX), rest]))
                tasks = [
                    asyncio.create_task(_forward(near, request)),
                    asyncio.create_task(_forward(far, answer)),
                ]
                await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
                for task in tasks:
                    task.cancel()
                await asyncio.gather(*tasks, return_exceptions=True)

    started: queue.SimpleQueue[tuple[asyncio.AbstractEventLoop, asyncio.Event, int]] = (
        queue.SimpleQueue()
    )

    async def run() -> None:
        stop = asyncio.Event()
        async with await asyncio.start_server(serve, "127.0.0.1", 0) as server:
            started.put((asyncio.get_running_loop(), stop, server.sockets[0].getsockname()[1]))
            await stop.wait()

    # A thread of its own: the browser's interface runs an event loop in that of the tests.
    thread = threading.Thread(target=asyncio.run, args=(run(),), name="path-proxy")
    thread.start()
    loop, stop, own_port = started.get(timeout=10)
    try:
        yield f"http://127.0.0.1:{own_port}{PREFIX.decode()}"
    finally:
        loop.call_soon_threadsafe(stop.set)
        thread.join()


async def _forward(source: asyncio.StreamReader, target: asyncio.StreamWriter) -> None:
    while data := await source.read(1 << 16):
        target.write(data)
        await target.drain()
