"""A pooler in transaction mode, as small as it can be: every transaction goes to the next server connection.

It speaks just enough of the protocol to know where a transaction ends (ReadyForQuery, "idle"), and
takes the connections in turn, so that whoever relies on session state is found out at once.
"""

from __future__ import annotations

import asyncio
import contextlib
import struct
import threading
from collections import deque

_SSL, _GSS, _CANCEL = 80877103, 80877104, 80877102
_Message = tuple[bytes, bytes]


class _Backend:
    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, greeting: bytes) -> None:
        self.reader = reader
        self.writer = writer
        self.greeting = greeting


class Pooler:
    """Runs in a thread of its own; ``port`` is where clients connect."""

    def __init__(self, target: str, database: str, *, size: int = 3) -> None:
        self._target = target
        self._database = database
        self._size = size
        self._idle: deque[_Backend] = deque()
        self._loop = asyncio.new_event_loop()
        self._clients: set[asyncio.Task[None]] = set()
        self.transactions = 0
        ready = threading.Event()
        self._thread = threading.Thread(target=self._run, args=(ready,), name="pooler", daemon=True)
        self._thread.start()
        ready.wait(10)

    def close(self) -> None:
        self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join()

    def _run(self, ready: threading.Event) -> None:
        asyncio.set_event_loop(self._loop)
        self._loop.run_until_complete(self._serve(ready))
        self._loop.close()

    async def _serve(self, ready: threading.Event) -> None:
        self._stop = asyncio.Event()
        self._freed = asyncio.Condition()
        for _ in range(self._size):
            self._idle.append(await self._dial())
        server = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        self.port: int = server.sockets[0].getsockname()[1]
        ready.set()
        await self._stop.wait()
        server.close()
        for task in self._clients:
            task.cancel()
        await asyncio.gather(*self._clients, return_exceptions=True)
        for backend in self._idle:
            backend.writer.close()

    async def _dial(self) -> _Backend:
        reader, writer = await asyncio.open_unix_connection(self._target)
        pairs = f"user\0postgres\0database\0{self._database}\0application_name\0pooler\0client_encoding\0UTF8\0\0"
        writer.write(struct.pack("!ii", 8 + len(pairs), 196608) + pairs.encode())
        greeting = b""
        while True:
            kind, body = await _message(reader)
            if kind in b"SR":  # parameters and "authenticated", which every client is told again
                greeting += _pack(kind, body)
            if kind == b"Z":
                return _Backend(reader, writer, greeting)

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._clients.add(task)
        try:
            with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError, asyncio.CancelledError):
                await self._client(reader, writer)
        finally:
            self._clients.discard(task)
            writer.close()

    async def _client(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while True:
            (size,) = struct.unpack("!i", await reader.readexactly(4))
            body = await reader.readexactly(size - 4)
            (code,) = struct.unpack("!i", body[:4])
            if code in (_SSL, _GSS):
                writer.write(b"N")
            elif code == _CANCEL:
                return
            else:
                break
        backend = await self._take()
        greeting = backend.greeting
        await self._give(backend)
        writer.write(greeting + _pack(b"K", struct.pack("!ii", 1, 1)) + _pack(b"Z", b"I"))
        asked: asyncio.Queue[_Message] = asyncio.Queue()
        feeder = asyncio.ensure_future(_feed(reader, asked))
        try:
            early: _Message | None = None
            while (message := early or await asked.get())[0] != b"X":
                early = await self._transaction(message, asked, writer)
        finally:
            feeder.cancel()

    async def _transaction(
        self, first: _Message, asked: asyncio.Queue[_Message], writer: asyncio.StreamWriter
    ) -> _Message | None:
        """Everything until the server is idle and owes no answer goes over one connection.

        Gives the first message of the next transaction, if it came that early.
        """
        backend = await self._take()
        self.transactions += 1
        backend.writer.write(_pack(*first))
        owed = int(first[0] in b"SQ")
        asking = asyncio.ensure_future(asked.get())
        answering = asyncio.ensure_future(_message(backend.reader))
        clean = False
        try:
            while True:
                done, _ = await asyncio.wait({asking, answering}, return_when=asyncio.FIRST_COMPLETED)
                if answering in done:
                    kind, body = answering.result()
                    writer.write(_pack(kind, body))
                    owed -= int(kind == b"Z")
                    if kind == b"Z" and owed == 0 and body == b"I":
                        clean = True
                        return asking.result() if asking.done() else None
                    answering = asyncio.ensure_future(_message(backend.reader))
                else:
                    kind, body = asking.result()
                    if kind == b"X":
                        return kind, body
                    owed += int(kind in b"SQ")
                    backend.writer.write(_pack(kind, body))
                    asking = asyncio.ensure_future(asked.get())
        finally:
            asking.cancel()
            answering.cancel()
            if not clean:  # a client that left in the middle takes its connection with it
                backend.writer.close()
                backend = await self._dial()
            await self._give(backend)

    async def _take(self) -> _Backend:
        async with self._freed:
            await self._freed.wait_for(lambda: bool(self._idle))
            return self._idle.popleft()

    async def _give(self, backend: _Backend) -> None:
        async with self._freed:
            self._idle.append(backend)
            self._freed.notify()


async def _feed(reader: asyncio.StreamReader, asked: asyncio.Queue[_Message]) -> None:
    try:
        while True:
            await asked.put(await _message(reader))
    except (asyncio.IncompleteReadError, ConnectionError):
        await asked.put((b"X", b""))


async def _message(reader: asyncio.StreamReader) -> _Message:
    head = await reader.readexactly(5)
    (size,) = struct.unpack("!i", head[1:])
    return head[:1], await reader.readexactly(size - 4)


def _pack(kind: bytes, body: bytes) -> bytes:
    return kind + struct.pack("!i", len(body) + 4) + body
