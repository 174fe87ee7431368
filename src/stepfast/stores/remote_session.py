"""The stream that ties a process to its server: wake-ups come in on it, and its end says that we are gone."""

from __future__ import annotations

import threading

import msgspec

from stepfast import wire
from stepfast.stores.base import Signals
from stepfast.stores.remote_http import Broken, Connection, Endpoint

_GREETING_SECONDS = 2.0
_SILENCE_SECONDS = 30.0
_FIRST_PAUSE, _LONGEST_PAUSE = 0.02, 2.0
_lines = msgspec.json.Decoder(list[str])


class Presence:
    """Keeps one stream open, in a thread of its own that no handler can starve.

    Topics travel with ordinary requests, in front of what they ask, so that nothing can change unseen between
    the asking and the waiting; the stream itself repeats them when it is opened anew.
    """

    def __init__(self, endpoint: Endpoint, session: str, signals: Signals) -> None:
        self._endpoint = endpoint
        self._session = session
        self._signals = signals
        self._owner = ""
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self._connection: Connection | None = None
        self._greeted = threading.Event()
        self._greetings = 0
        self._closed = threading.Event()
        self._known: frozenset[str] = frozenset()

    @property
    def is_open(self) -> bool:
        """Whether a lease that is taken now is tied to this stream."""
        return bool(self._owner) and self._greeted.is_set()

    @property
    def stream(self) -> int:
        """The number of the stream that is open now, or 0."""
        return self._greetings if self._greeted.is_set() else 0

    @property
    def is_dirty(self) -> bool:
        return self._thread is not None and not self._signals.topics <= self._known

    def open(self, owner: str) -> None:
        """Open the stream for this owner, and wait a moment until the server has seen it."""
        if owner != self._owner:
            self._owner = owner
            self._greeted.clear()
            self._reopen()
        self._start()
        self._greeted.wait(_GREETING_SECONDS)

    def changed(self) -> None:
        """Somebody waits on something: from now on there must be a stream."""
        self._start()

    def topics_to_tell(self) -> list[str] | None:
        """What the next request has to say about topics; None if the server knows already."""
        return sorted(self._signals.topics) if self.is_dirty else None

    def told(self, topics: list[str], heard: bool, stream: int) -> None:
        """Note whether the server knows the topics of a request that was sent while ``stream`` was open.

        Where no stream was open yet, the next one wakes every watch when it is, and they ask again by themselves. To
        hang up then would make the server believe that this process is gone.
        """
        if heard:
            self._known = frozenset(topics)
        elif stream and stream == self.stream:
            self._reopen()  # the request went to another server than the stream

    def close(self) -> None:
        self._closed.set()
        self._reopen()
        thread = self._thread
        if thread is not None and thread is not threading.current_thread():
            thread.join()

    def _start(self) -> None:
        with self._lock:
            if self._thread is None and not self._closed.is_set():
                self._thread = threading.Thread(target=self._stay, name="stepfast-presence", daemon=True)
                self._thread.start()

    def _reopen(self) -> None:
        connection = self._connection
        if connection is not None:
            connection.hang_up()

    def _stay(self) -> None:
        head = self._endpoint.head("POST", wire.SESSION_PATH, wire.CONTENT_TYPE)
        pause = _FIRST_PAUSE
        while not self._closed.is_set():
            try:
                self._listen(head)
            except (Broken, OSError, ValueError):
                pass  # as good as a polite end: come back
            finally:
                greeted = self._greeted.is_set()
                self._greeted.clear()
                self._known = frozenset()
            if self._closed.is_set():
                return
            # A stream that was open is missed at once: the server hands on what its process held after a moment.
            pause = _FIRST_PAUSE if greeted else min(pause * 2, _LONGEST_PAUSE)
            self._closed.wait(pause)

    def _listen(self, head: bytes) -> None:
        topics, owner = frozenset(self._signals.topics), self._owner
        connection = self._connection = self._endpoint.dial(_SILENCE_SECONDS)
        try:
            hello = wire.encode_session(wire.Session(self._session, owner, sorted(topics)))
            response, pieces = connection.open_stream(head, hello)
            if response.status != 200:
                self._closed.wait(_LONGEST_PAUSE)  # refused: a key that is revoked, or too many streams
                return
            buffered = b""
            for piece in pieces:
                *lines, buffered = (buffered + piece).split(b"\n")
                if owner != self._owner:
                    return  # said hello before the owner was known: a lease would not be tied to this stream
                for line in lines:
                    woken = _lines.decode(line)
                    if not self._greeted.is_set():
                        self._known = topics
                        self._greetings += 1
                        self._greeted.set()
                        self._signals.wake_all()  # what changed while we were away was not told
                    for topic in woken:
                        self._signals.wake(topic)
        finally:
            self._connection = None
            connection.close()
