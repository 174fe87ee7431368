"""The remote store on a bad line: what is lost on the way is asked for again, and nothing is done twice."""

from __future__ import annotations

import os
import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from stepfast import wire
from stepfast.clock import new_id
from stepfast.errors import AccessDenied, InvalidInput, OutcomeUnknown, StepfastError, StoreError, StoreUnavailable
from stepfast.intents import Status
from stepfast.ops import (
    CheckWritable,
    Claim,
    CreateIntent,
    FinishIntent,
    GetIntent,
    ListIntents,
    NewIntent,
    ReadJournal,
)
from stepfast.stores import remote_session
from stepfast.stores.base import Store
from stepfast.stores.remote import RemoteStore
from stepfast.stores.sqlite import SqliteStore
from tests.contract.http_places import Served
from tests.stores.faults import Proxy, Way
from tests.stores.kit import open_run, record_op, step

KEY = b"alone".hex()


@pytest.fixture
def bottom(tmp_path: Path) -> Iterator[Store]:
    with SqliteStore(tmp_path / "store.db", durability="process") as store:
        yield store


@pytest.fixture
def served(bottom: Store) -> Iterator[Served]:
    server = Served(bottom)
    yield server
    server.stop()


@pytest.fixture
def proxy(served: Served) -> Iterator[Proxy]:
    between = Proxy(("127.0.0.1", served.port))
    yield between
    between.close()


@pytest.fixture
def store(proxy: Proxy) -> Iterator[RemoteStore]:
    with RemoteStore(f"http://127.0.0.1:{proxy.port}", api_key=KEY) as opened:
        yield opened


def places(length: int) -> list[int]:
    """The first and the last bytes, and a sample between."""
    return sorted({*range(1, 12), *range(1, length, 23), *range(max(1, length - 8), length)})


def weigh(proxy: Proxy, doing: Callable[[], Any]) -> dict[str, int]:
    proxy.count()
    doing()
    return dict(proxy.passed)


@pytest.mark.parametrize("way", ["request", "response"])
def test_a_step_survives_a_cut_anywhere_in_its_request_or_answer(
    store: RemoteStore, bottom: Store, proxy: Proxy, way: Way
) -> None:
    opened = open_run(store)
    sizes = weigh(proxy, lambda: store.execute([record_op(opened, step(1))]))
    recorded = 1
    for place in places(sizes[way]):
        recorded += 1
        before = proxy.cuts
        proxy.cut(way, place)
        assert store.execute([record_op(opened, step(recorded))]) == [None]
        assert proxy.cuts == before + 1, f"byte {place} was never cut"
    found = bottom.one(ReadJournal(journal_id=opened.intent.journal_id), tenant="alone")
    assert [s.key for s in found] == [step(n).key for n in range(1, recorded + 1)]
    print(f"{recorded - 1} cuts in a {way} of {sizes[way]} bytes: each step is there once")


@pytest.mark.parametrize("way", ["request", "response"])
def test_a_claim_cut_anywhere_takes_one_intent(store: RemoteStore, bottom: Store, proxy: Proxy, way: Way) -> None:
    def claim() -> list[Any]:
        op = Claim(to_agent="agent", token=new_id(), owner="w", lease_seconds=600)
        return store.execute([op])[0]

    total = 0
    for _ in range(4):
        store.one(CreateIntent(new=NewIntent(intent_id=new_id(), intent_type="t.v1", to_agent="agent")))
        total += 1
    taken = [claim()[0].intent_id]
    sizes = weigh(proxy, lambda: taken.append(claim()[0].intent_id))
    for place in places(sizes[way])[::3]:
        store.one(CreateIntent(new=NewIntent(intent_id=new_id(), intent_type="t.v1", to_agent="agent")))
        total += 1
        proxy.cut(way, place)
        taken.append(claim()[0].intent_id)
    assert len(set(taken)) == len(taken)
    held = [i for i in bottom.one(ListIntents(), tenant="alone") if i.leased]
    assert len(held) == min(len(taken), 50), "what was answered is held, and nothing else"
    assert all(i.attempt == 1 for i in held)


@pytest.mark.parametrize("way", ["request", "response"])
def test_an_ending_cut_anywhere_is_told_once(store: RemoteStore, bottom: Store, proxy: Proxy, way: Way) -> None:
    def finish() -> str:
        opened = open_run(store)
        op = FinishIntent(intent_id=opened.intent.intent_id, status=Status.COMPLETED, lease=opened.lease, result=b"r")
        assert store.one(op).status is Status.COMPLETED
        return opened.intent.intent_id

    ids = [finish()]
    for place in places(400)[::3]:
        opened = open_run(store)
        proxy.cut(way, place)
        op = FinishIntent(intent_id=opened.intent.intent_id, status=Status.COMPLETED, lease=opened.lease, result=b"r")
        assert store.one(op).status is Status.COMPLETED
        proxy.cut(way, 10**9)
        ids.append(opened.intent.intent_id)
    for intent_id in ids:
        intent = bottom.one(GetIntent(intent_id=intent_id), tenant="alone")
        assert (intent.status, intent.attempt, intent.seq) == (Status.COMPLETED, 1, 5)


def test_an_answer_that_never_comes_is_an_unknown_outcome(served: Served, proxy: Proxy, bottom: Store) -> None:
    url = f"http://127.0.0.1:{proxy.port}"
    with RemoteStore(url, api_key=KEY, timeout=1.0) as store:
        opened = open_run(store)
        proxy.swallow(True)
        with pytest.raises(OutcomeUnknown, match="may have been applied"):
            store.execute([record_op(opened, step(1))])
        with pytest.raises(StoreUnavailable, match="nothing was written"):
            store.execute([ListIntents()])
        proxy.swallow(False)
        assert store.execute([record_op(opened, step(1))]) == [None], "asking again finds it"
    found = bottom.one(ReadJournal(journal_id=opened.intent.journal_id), tenant="alone")
    assert len(found) == 1


def test_a_server_that_comes_back_is_waited_for(bottom: Store) -> None:
    first = Served(bottom)
    with RemoteStore(first.url, api_key=KEY) as store:
        opened = open_run(store)
        first.stop(abruptly=True)
        back: list[Served] = []
        timer = threading.Timer(0.7, lambda: back.append(Served(bottom, first.port)))
        timer.start()
        assert store.execute([record_op(opened, step(1))]) == [None]
        timer.join()
        with store.watch(f"intent:{opened.intent.intent_id}") as watch:
            store.one(FinishIntent(intent_id=opened.intent.intent_id, status=Status.CANCELED))
            assert watch.wait(20), "and it wakes us as before"
        intent = store.one(GetIntent(intent_id=opened.intent.intent_id))
        assert (intent.status, intent.lost) == (Status.CANCELED, 0), "no delivery was lost by it"
    back[0].stop()


def test_a_process_whose_stream_breaks_keeps_its_leases(store: RemoteStore, bottom: Store, proxy: Proxy) -> None:
    opened = open_run(store)
    assert store._presence.is_open
    for _ in range(3):
        proxy.drop()
        wait_until(lambda: store._presence.is_open, "it did not come back")
    time.sleep(1.0)  # more than the server waits for the stream to be back
    assert store.execute([record_op(opened, step(1))]) == [None]
    assert bottom.one(GetIntent(intent_id=opened.intent.intent_id), tenant="alone").lost == 0


class Pauses(threading.Event):
    """Notes how long the stream's thread would wait before it dials again, and lets it wait for a moment only."""

    def __init__(self) -> None:
        super().__init__()
        self.seconds: list[float] = []

    def wait(self, timeout: float | None = None) -> bool:
        assert timeout is not None
        self.seconds.append(timeout)
        return super().wait(0.001)


def test_a_stream_that_was_open_is_dialled_again_at_once_even_after_a_long_outage(bottom: Store) -> None:
    first = Served(bottom)
    proxy = Proxy(("127.0.0.1", first.port))
    with RemoteStore(f"http://127.0.0.1:{proxy.port}", api_key=KEY) as store:
        pauses = store._presence._closed = Pauses()
        opened = open_run(store)
        first.stop(abruptly=True)
        wait_until(lambda: max(pauses.seconds, default=0) == remote_session._LONGEST_PAUSE, "it does not dial")
        back = Served(bottom, first.port)
        wait_until(lambda: store._presence.is_open, "it did not come back")
        pauses.seconds.clear()
        proxy.drop()
        wait_until(lambda: bool(pauses.seconds) and store._presence.is_open, "it did not come back")
        assert pauses.seconds[0] == remote_session._FIRST_PAUSE, "the server hands on what it holds after 0.3 s"
        assert store.execute([record_op(opened, step(1))]) == [None]
    proxy.close()
    back.stop()


def test_a_request_that_was_sent_before_the_stream_was_open_does_not_cut_it(store: RemoteStore) -> None:
    presence = store._presence
    before = presence.stream
    assert before == 0
    with store.watch("agent:somebody") as watch:
        wait_until(lambda: presence.stream > 0, "no stream was opened")
        opened = presence.stream
        presence.told(["agent:somebody"], False, before)  # the answer to a request that overtook the stream
        assert watch.wait(20), "the stream's beginning woke the watch, which asks again"
        store.one(ListIntents())
        assert presence.stream == opened, "a stream that is hung up looks to the server like a process that died"
        presence.told(["agent:somebody"], False, opened)
        wait_until(lambda: presence.stream > opened, "a stream at another server is opened anew")


def test_a_closed_store_hands_on_what_it_still_holds(served: Served, bottom: Store) -> None:
    store = RemoteStore(served.url, api_key=KEY)
    opened = open_run(store)
    store.close()
    wait_until(
        lambda: not bottom.one(GetIntent(intent_id=opened.intent.intent_id), tenant="alone").leased, "it is still held"
    )
    assert bottom.one(GetIntent(intent_id=opened.intent.intent_id), tenant="alone").lost == 1


def test_a_lease_taken_right_after_a_watch_began_is_tied_to_the_stream_too(served: Served, bottom: Store) -> None:
    for _ in range(12):
        store = RemoteStore(served.url, api_key=KEY)
        with store.watch("agent:somebody"):
            opened = open_run(store)
            store.close()
        held = GetIntent(intent_id=opened.intent.intent_id)
        wait_until(lambda held=held: not bottom.one(held, tenant="alone").leased, "it is still held")  # type: ignore[misc]


def test_callers_at_the_same_time_share_requests(store: RemoteStore, served: Served) -> None:
    opened = open_run(store)
    asked = _count_requests(store)
    start = threading.Barrier(16)

    def work(number: int) -> None:
        start.wait()
        for n in range(10):
            store.execute([record_op(opened, step(1000 * number + n))])

    threads = [threading.Thread(target=work, args=(n,)) for n in range(1, 17)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(store.one(ReadJournal(journal_id=opened.intent.journal_id))) == 160
    assert asked[0] < 120, f"{asked[0]} requests for 160 steps"


def test_a_forked_child_uses_connections_of_its_own(store: RemoteStore) -> None:
    opened = open_run(store)
    session = store.session
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            ok = store.session != session and len(store.execute([ListIntents()])[0]) == 1
            store.close()
            os.write(writer, b"y" if ok else b"n")
        finally:
            os._exit(0)
    os.close(writer)
    with os.fdopen(reader, "rb") as told:
        assert told.read() == b"y"
    os.waitpid(child, 0)
    assert store.execute([record_op(opened, step(1))]) == [None]


# --- servers that misbehave ----------------------------------------------------------------------


class Scripted:
    """Answers the greeting as it should, and then what the test says."""

    def __init__(self, *answers: bytes | None) -> None:
        self.answers = list(answers)
        self.asked = 0
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._listening.getsockname()[1]}"
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    def _serve(self) -> None:
        while True:
            try:
                link, _ = self._listening.accept()
            except OSError:
                return
            with link:
                self._talk(link)

    def _talk(self, link: socket.socket) -> None:
        while True:
            data = b""
            while b"\r\n\r\n" not in data:
                try:
                    more = link.recv(65536)
                except OSError:
                    return
                if not more:
                    return
                data += more
            head, _, body = data.partition(b"\r\n\r\n")
            length = int(head.lower().partition(b"content-length:")[2].split(b"\r\n")[0])
            while len(body) < length:
                body += link.recv(65536)
            if b"/v1/whoami" in head:
                link.sendall(reply(200, b'{"tenant": "t", "time_us": 0, "limits": {"ops_bytes": 1000000}}'))
                continue
            self.asked += 1
            answer = self.answers.pop(0) if self.answers else good(1)
            if answer is None:
                return
            link.sendall(answer)
            if b"\r\n\r\n" not in answer:
                return

    def close(self) -> None:
        self._listening.shutdown(socket.SHUT_RDWR)
        self._listening.close()
        self._thread.join(5)


def reply(status: int, body: bytes, *lines: str) -> bytes:
    more = "".join(f"{line}\r\n" for line in lines)
    return f"HTTP/1.1 {status} X\r\nContent-Length: {len(body)}\r\n{more}\r\n".encode() + body


def good(result: Any) -> bytes:
    return reply(200, wire.encode_answer([[result]]))


@pytest.fixture
def script() -> Iterator[Callable[..., tuple[Scripted, RemoteStore]]]:
    made: list[Any] = []

    def start(*answers: bytes | None, timeout: float = 10.0) -> tuple[Scripted, RemoteStore]:
        server = Scripted(*answers)
        store = RemoteStore(server.url, timeout=timeout)
        made.extend([store, server])
        return server, store

    yield start
    for each in made:
        each.close()


Script = Callable[..., tuple[Scripted, RemoteStore]]


@pytest.mark.parametrize(
    "trouble",
    [
        reply(429, b"{}", "Retry-After: 1"),
        reply(503, b'{"error": {"message": "closing"}}'),
        reply(502, b"<html>"),
        None,
        b"HTTP/1.1 200 OK\r\nContent-Le",
        b"garbage\r\n\r\n",
        b"HTTP/1.1 200 OK\r\n\r\n",
    ],
    ids=["429", "503", "502", "closed", "broken off", "garbage", "no length"],
)
def test_passing_trouble_is_sat_out(script: Script, trouble: bytes | None) -> None:
    server, store = script(trouble, good(7))
    assert store.one(CheckWritable()) == 7
    assert server.asked == 2


def test_a_server_that_asks_for_patience_gets_it(script: Script) -> None:
    _, store = script(reply(429, b"{}", "Retry-After: 1"), good(7))
    began = time.monotonic()
    store.one(CheckWritable())
    assert time.monotonic() - began >= 1.0


@pytest.mark.parametrize(
    ("answer", "error", "text"),
    [
        (reply(401, b'{"error": {"message": "this key is not known"}}'), AccessDenied, "not known"),
        (reply(403, b'{"error": {"message": "not yours"}}'), AccessDenied, "not yours"),
        (reply(404, b"nothing"), InvalidInput, "Stepfast server"),
        (reply(413, b'{"error": {"message": "too large"}}'), InvalidInput, "too large"),
        (reply(500, b"oops"), OutcomeUnknown, "may have been applied"),
        (reply(200, b"not what was asked for"), OutcomeUnknown, "cannot be read"),
        (reply(200, wire.encode_answer([[1], [2]])), OutcomeUnknown, "cannot be read"),
    ],
    ids=["401", "403", "404", "413", "500", "nonsense", "answers of others"],
)
def test_what_will_not_pass_is_told(script: Script, answer: bytes, error: type[StepfastError], text: str) -> None:
    _, store = script(answer)
    with pytest.raises(error, match=text):
        store.one(CheckWritable())


def test_a_failed_read_wrote_nothing(script: Script) -> None:
    _, store = script(reply(500, b"oops"))
    with pytest.raises(StoreError) as caught:
        store.execute([ListIntents()])
    assert not isinstance(caught.value, OutcomeUnknown)


def test_an_answer_in_chunks_is_read(script: Script) -> None:
    body = wire.encode_answer([[7]])
    chunks = b"".join(b"1\r\n%c\r\n" % byte for byte in body) + b"0\r\n\r\n"
    _, store = script(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n" + chunks)
    assert store.one(CheckWritable()) == 7


def test_a_batch_larger_than_the_server_takes_is_refused_before_it_is_sent(script: Script) -> None:
    server, store = script()
    new = NewIntent(intent_id=new_id(), intent_type="t.v1", to_agent="a", payload=b"x" * 1_100_000)
    with pytest.raises(InvalidInput, match="more than"):
        store.one(CreateIntent(new=new))
    assert server.asked == 0


def test_nobody_there_is_told_within_the_callers_patience() -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    began = time.monotonic()
    with pytest.raises(StoreUnavailable, match="nothing was written"):
        RemoteStore(f"http://127.0.0.1:{port}", connect_timeout=0.5)
    assert time.monotonic() - began < 10


def test_a_web_page_is_not_a_server(tmp_path: Path) -> None:
    listening = socket.create_server(("127.0.0.1", 0))

    def serve() -> None:
        link, _ = listening.accept()
        with link:
            link.recv(65536)
            link.sendall(reply(200, b"<html>hello</html>"))

    thread = threading.Thread(target=serve)
    thread.start()
    with pytest.raises(InvalidInput, match="not as a Stepfast server"):
        RemoteStore(f"http://127.0.0.1:{listening.getsockname()[1]}")
    thread.join()
    listening.close()


@pytest.mark.parametrize(
    ("url", "options", "field"),
    [
        ("http://", {}, "url"),
        ("http://user:secret@host", {}, "url"),
        ("http://host/?a=b", {}, "url"),
        ("http://host", {"api_key": "two\r\nlines"}, "api_key"),
        ("http://host", {"api_key": "ключ"}, "api_key"),
        ("http://host", {"timeout": 0}, "timeout"),
    ],
)
def test_wrong_settings_are_named(url: str, options: dict[str, Any], field: str) -> None:
    with pytest.raises(InvalidInput, match=field):
        RemoteStore(url, **options)


def test_the_key_is_not_in_what_is_shown() -> None:
    server = Scripted()
    with RemoteStore(server.url, api_key="sekret") as store:
        assert "sekret" not in store.url
        assert "sekret" not in repr(store)
    server.close()


def test_a_certificate_that_nobody_vouches_for_is_refused(tmp_path: Path) -> None:
    from tests.stores.certificates import self_signed

    certificate, key = self_signed(tmp_path)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)
    listening = socket.create_server(("127.0.0.1", 0))
    stop = threading.Event()

    def serve() -> None:
        listening.settimeout(0.1)
        while not stop.is_set():
            try:
                link, _ = listening.accept()
            except TimeoutError:
                continue
            try:
                with context.wrap_socket(link, server_side=True) as secure:
                    secure.recv(65536)
                    secure.sendall(reply(200, b'{"tenant": "t", "time_us": 0}'))
            except (ssl.SSLError, OSError):
                link.close()

    thread = threading.Thread(target=serve)
    thread.start()
    url = f"https://127.0.0.1:{listening.getsockname()[1]}"
    try:
        with pytest.raises(StoreUnavailable, match="certificate"):
            RemoteStore(url, connect_timeout=0.5)
        trusting = ssl.create_default_context(cafile=str(certificate))
        RemoteStore(url, verify=trusting).close()
    finally:
        stop.set()
        thread.join()
        listening.close()


def wait_until(true: Callable[[], bool], otherwise: str, seconds: float = 20.0) -> None:
    until = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < until, otherwise
        time.sleep(0.01)


def _count_requests(store: RemoteStore) -> list[int]:
    asked = [0]
    connections: Any = store._connections
    ask = connections.ask

    def counting(head: bytes, body: bytes) -> Any:
        asked[0] += 1
        return ask(head, body)

    connections.ask = counting
    return asked


def test_every_kind_of_error_arrives_as_itself() -> None:
    from stepfast import errors

    for name in errors.__all__:
        kind = getattr(errors, name)
        if issubclass(kind, StepfastError):
            fault = wire.to_fault(kind("what happened", intent_id="i", number=3, odd=object()))
            back = wire.to_error(msgspec.msgpack.decode(msgspec.msgpack.encode(fault), type=wire.Fault))
            assert type(back) is kind
            assert (back.message, back.details) == ("what happened", {"intent_id": "i", "number": 3})
    assert type(wire.to_error(wire.to_fault(RuntimeError("secret inside")))) is StoreError
    assert "secret" not in wire.to_fault(RuntimeError("secret inside")).message
