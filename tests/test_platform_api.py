"""The client of the JSON API at its edges: lost answers, broken streams, odd frames. The network is played by respx."""

from __future__ import annotations

import asyncio
import inspect
import json
import time
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import httpx
import pytest
import respx

from stepfast import platform_api
from stepfast.errors import (
    AccessDenied,
    AlreadyFinished,
    Conflict,
    InvalidInput,
    NotFound,
    OutcomeUnknown,
    StepfastError,
    StoreUnavailable,
)
from stepfast.platform_api import AsyncPlatformAPI, PlatformAPI
from stepfast.platform_api._flows import Frames

URL = "http://127.0.0.1:8100"
DONE = {"intent_id": "i", "seq": 2, "event_type": "intent.completed", "status": "COMPLETED", "result": {"ok": 1}}


class Api:
    """One client or the other, called alike."""

    def __init__(self, kind: str) -> None:
        self.kind = kind

    def call(self, name: str, *args: Any, **options: Any) -> Any:
        if self.kind == "sync":
            with PlatformAPI(URL, "key") as api:
                return _find(api, name)(*args, **options)

        async def run() -> Any:
            async with AsyncPlatformAPI(URL, "key") as api:
                return await _find(api, name)(*args, **options)

        return asyncio.run(run())

    def collect(self, name: str, *args: Any, most: int = 100, **options: Any) -> list[Any]:
        if self.kind == "sync":
            found: list[Any] = []
            with PlatformAPI(URL, "key") as api:
                for event in _find(api, name)(*args, **options):
                    found.append(event)
                    if len(found) == most:
                        break
            return found

        async def run() -> list[Any]:
            seen: list[Any] = []
            async with AsyncPlatformAPI(URL, "key") as api:
                stream = _find(api, name)(*args, **options)
                async for event in stream:
                    seen.append(event)
                    if len(seen) == most:
                        break
                await stream.aclose()
            return seen

        return asyncio.run(run())


def _find(api: Any, name: str) -> Callable[..., Any]:
    for part in name.split("."):
        api = getattr(api, part)
    return api


@pytest.fixture(params=["sync", "async"])
def api(request: pytest.FixtureRequest) -> Api:
    return Api(request.param)


@pytest.fixture
def wire() -> Iterator[respx.MockRouter]:
    with respx.mock(base_url=URL, assert_all_called=False) as router:
        yield router


@pytest.fixture
def pauses(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Every pause that is taken; none of them takes time."""
    taken: list[float] = []
    really = asyncio.sleep

    async def soon(seconds: float) -> None:
        taken.append(seconds)
        await really(0)

    # For this module alone: other tests' servers may be at work in threads of this process.
    monkeypatch.setattr(platform_api, "time", Instead(time, taken.append))
    monkeypatch.setattr(platform_api, "asyncio", Instead(asyncio, soon))
    return taken


class Instead:
    """A module whose ``sleep`` is another."""

    def __init__(self, module: Any, sleep: Any) -> None:
        self._module = module
        self.sleep = sleep

    def __getattr__(self, name: str) -> Any:
        return getattr(self._module, name)


class Body(httpx.SyncByteStream, httpx.AsyncByteStream):
    """The bytes of a stream, in these pieces; an exception among them breaks it there."""

    def __init__(self, *pieces: bytes | Exception) -> None:
        self.pieces = pieces

    def __iter__(self) -> Iterator[bytes]:
        for piece in self.pieces:
            if isinstance(piece, Exception):
                raise piece
            yield piece

    async def __aiter__(self) -> AsyncIterator[bytes]:
        for piece in self:
            yield piece


def stream(*pieces: bytes | Exception) -> httpx.Response:
    return httpx.Response(200, stream=Body(*pieces))


def frame(data: Any, event: str | None = None, text: str | None = None) -> bytes:
    name = event or data["event_type"]
    return f"id: 1\nevent: {name}\ndata: {text if text is not None else json.dumps(data)}\n\n".encode()


def event(seq: int, **more: Any) -> dict[str, Any]:
    return {"intent_id": "i", "seq": seq, "event_type": "intent.in_progress", "status": "IN_PROGRESS", **more}


TIMEOUT = b'event: stream.timeout\ndata: {"ok":true}\n\n'


# --- requests ------------------------------------------------------------------------------------


def test_both_clients_have_the_same_methods() -> None:
    def methods(kind: type) -> dict[str, Any]:
        found = inspect.getmembers(kind, inspect.isfunction)
        return {name: inspect.signature(each) for name, each in found if not name.startswith("_") and name != "close"}

    assert methods(PlatformAPI) == methods(AsyncPlatformAPI)


def test_the_methods_of_the_axme_sdk_for_durable_work_are_all_there() -> None:
    from axme_sdk.client import AxmeClient  # type: ignore[import-untyped]
    from axme_sdk.mesh import MeshClient  # type: ignore[import-untyped]

    out = "invite media schema nick profile organization workspace access_request quota usage principal alias routing "
    out += "transport deliver billing webhook mcp close"
    wanted = [name for name in vars(AxmeClient) if not any(word in name for word in out.split())]
    wanted = [name for name in wanted if not name.startswith("_")]
    assert set(wanted) - set(dir(PlatformAPI("http://x", "k"))) == set()
    ours = dir(PlatformAPI("http://x", "k").mesh)
    assert {"heartbeat", "list_agents", "get_agent", "kill", "resume", "list_events"} <= set(ours) & set(
        dir(MeshClient)
    )


def test_an_intent_is_sent_with_a_key_of_its_own(api: Api, wire: respx.MockRouter) -> None:
    route = wire.post("/v1/intents").respond(json={"ok": True, "intent_id": "i"})
    assert api.call("send_intent", {"intent_type": "t.v1", "to_agent": "a"}) == "i"
    sent = route.calls[0].request
    assert len(sent.headers["idempotency-key"]) == 36
    assert sent.headers["x-api-key"] == "key"
    assert json.loads(sent.content)["correlation_id"]


def test_a_lost_answer_is_asked_for_again_with_the_same_key(
    api: Api, wire: respx.MockRouter, pauses: list[float]
) -> None:
    route = wire.post("/v1/intents").mock(
        side_effect=[
            httpx.ReadTimeout("slow"),
            httpx.RemoteProtocolError("cut"),
            httpx.Response(200, json={"ok": True, "intent_id": "i"}),
        ]
    )
    assert api.call("send_intent", {"intent_type": "t.v1", "to_agent": "a"}, idempotency_key="mine") == "i"
    assert [call.request.headers["idempotency-key"] for call in route.calls] == ["mine"] * 3
    assert len({call.request.content for call in route.calls}) == 1
    assert len(pauses) == 2


def test_what_may_have_happened_is_not_done_twice(api: Api, wire: respx.MockRouter, pauses: list[float]) -> None:
    route = wire.post("/v1/service-accounts/s/keys").mock(side_effect=httpx.ReadTimeout("slow"))
    with pytest.raises(OutcomeUnknown):
        api.call("create_service_account_key", "s", {})
    assert route.call_count == 1
    assert pauses == []


def test_what_was_never_sent_is_tried_again_whatever_it_is(
    api: Api, wire: respx.MockRouter, pauses: list[float]
) -> None:
    wire.post("/v1/service-accounts/s/keys").mock(
        side_effect=[httpx.ConnectError("refused"), httpx.Response(200, json={"ok": True})]
    )
    assert api.call("create_service_account_key", "s", {}) == {"ok": True}
    assert len(pauses) == 1


def test_a_server_that_is_away_is_an_error_of_its_own(api: Api, wire: respx.MockRouter, pauses: list[float]) -> None:
    wire.get("/v1/intents/i").mock(side_effect=httpx.ConnectError("refused"))
    with pytest.raises(StoreUnavailable):
        api.call("get_intent", "i")
    assert len(pauses) == 4
    assert pauses == sorted(pauses) or max(pauses) <= 5.0


def test_retry_after_is_honoured(api: Api, wire: respx.MockRouter, pauses: list[float]) -> None:
    wire.get("/v1/intents").mock(
        side_effect=[
            httpx.Response(429, headers={"retry-after": "7"}),
            httpx.Response(503, headers={"retry-after": "9999"}),
            httpx.Response(200, json={"ok": True, "intents": []}),
        ]
    )
    assert api.call("list_intents") == {"ok": True, "intents": []}
    assert pauses == [7.0, 60.0]


@pytest.mark.parametrize("status", [500, 502, 504])
def test_a_5xx_is_tried_again_where_that_is_safe(
    api: Api, wire: respx.MockRouter, pauses: list[float], status: int
) -> None:
    wire.get("/v1/intents/i").mock(side_effect=[httpx.Response(status), httpx.Response(200, json={"ok": True})])
    assert api.call("get_intent", "i") == {"ok": True}
    route = wire.post("/v1/inbox/t/reply").respond(status)
    with pytest.raises(StoreUnavailable):
        api.call("reply_inbox_thread", "t", message="hello")
    assert route.call_count == 1


@pytest.mark.parametrize(
    ("status", "code", "kind"),
    [
        (401, "missing_platform_api_key", AccessDenied),
        (403, "forbidden", AccessDenied),
        (404, "not_found", NotFound),
        (409, "conflict", Conflict),
        (409, "already_finished", AlreadyFinished),
        (422, "invalid_agent_address", InvalidInput),
        (413, "too_large", InvalidInput),
        (501, "not_implemented", StepfastError),
    ],
)
def test_errors_are_typed(api: Api, wire: respx.MockRouter, status: int, code: str, kind: type[StepfastError]) -> None:
    body = {"error": {"code": code, "message": "so it is", "details": {"a": 1}}, "detail": "so it is"}
    wire.get("/v1/intents/i").respond(status, json=body)
    with pytest.raises(kind) as caught:
        api.call("get_intent", "i")
    assert type(caught.value) is kind
    assert caught.value.message == "so it is"
    assert caught.value.code == code
    assert caught.value.details == {"a": 1, "http_status": status}


@pytest.mark.parametrize("content", [b"<html>", b"[]", b"", b'{"a": '])
def test_an_answer_that_is_no_object_is_an_error(api: Api, wire: respx.MockRouter, content: bytes) -> None:
    wire.get("/v1/intents/i").respond(200, content=content)
    with pytest.raises(StoreUnavailable):
        api.call("get_intent", "i")


def test_addresses_and_ids_cannot_break_out_of_their_place(api: Api, wire: respx.MockRouter) -> None:
    route = wire.get(path__regex=".*").respond(json={"ok": True})
    api.call("get_agent", "agent://org/ws/na me")
    api.call("get_intent", "../../health?x=1")
    assert [call.request.url.raw_path for call in route.calls] == [
        b"/v1/agents/org/ws/na%20me",
        b"/v1/intents/..%2F..%2Fhealth%3Fx%3D1",
    ]


@pytest.mark.parametrize(("url", "key"), [("127.0.0.1:8100", "k"), ("", "k"), (URL, " ")])
def test_a_client_needs_a_url_and_a_key(url: str, key: str) -> None:
    with pytest.raises(InvalidInput):
        PlatformAPI(url, key)
    with pytest.raises(InvalidInput):
        AsyncPlatformAPI(url, key)


# --- streams -------------------------------------------------------------------------------------

EVENTS = "/v1/intents/i/events/stream"


def test_the_events_of_an_intent_end_with_its_ending(api: Api, wire: respx.MockRouter) -> None:
    wire.get(EVENTS).mock(return_value=stream(b": ka\n\n", frame(event(1)), frame(DONE), frame(event(3))))
    assert api.collect("observe", "i") == [event(1), DONE]


def test_waiting_gives_the_event_of_the_ending(api: Api, wire: respx.MockRouter) -> None:
    wire.get(EVENTS).mock(side_effect=[stream(frame(event(1)), TIMEOUT), stream(frame(DONE))])
    assert api.call("wait_for", "i") == DONE


@pytest.mark.parametrize(
    "broken",
    [
        [frame(event(1)), httpx.ReadError("reset")],
        [frame(event(1)), httpx.RemoteProtocolError("cut")],
        [frame(event(1)), httpx.ReadTimeout("silent")],
        [frame(event(1)), frame(DONE)[:-10], httpx.ReadError("in the middle of a frame")],
        [frame(event(1)), TIMEOUT],
        [frame(event(1))],
    ],
)
def test_a_stream_that_breaks_goes_on_after_the_last_event(
    api: Api, wire: respx.MockRouter, pauses: list[float], broken: list[Any]
) -> None:
    route = wire.get(EVENTS).mock(side_effect=[stream(*broken), stream(frame(event(1)), frame(DONE))])
    assert api.collect("observe", "i") == [event(1), DONE]
    assert [call.request.url.params["since"] for call in route.calls] == ["0", "1"]


def test_a_stream_survives_refusals(api: Api, wire: respx.MockRouter, pauses: list[float]) -> None:
    wire.get(EVENTS).mock(
        side_effect=[
            httpx.ConnectError("refused"),
            httpx.Response(429, headers={"retry-after": "3"}),
            httpx.Response(503),
            httpx.Response(502, content=b"<html>bad gateway</html>"),
            stream(frame(event(1)), frame(DONE)),
        ]
    )
    assert api.collect("observe", "i") == [event(1), DONE]
    assert 3.0 in pauses
    assert len(pauses) == 4


@pytest.mark.parametrize(("status", "kind"), [(401, AccessDenied), (403, AccessDenied), (404, NotFound)])
def test_a_stream_that_is_denied_is_an_error(api: Api, wire: respx.MockRouter, status: int, kind: type) -> None:
    wire.get(EVENTS).respond(status, json={"error": {"code": "x", "message": "no"}, "detail": "no"})
    with pytest.raises(kind):
        api.collect("observe", "i")


def test_a_stream_that_ends_at_once_does_not_spin(api: Api, wire: respx.MockRouter, pauses: list[float]) -> None:
    wire.get(EVENTS).mock(side_effect=[stream() for _ in range(5)] + [stream(frame(event(1)), frame(DONE))])
    assert api.collect("observe", "i") == [event(1), DONE]
    assert len(pauses) == 5


def test_line_separators_of_unicode_are_text(api: Api, wire: respx.MockRouter) -> None:
    odd = {**DONE, "seq": 1, "result": "a\u2028b\u2029c\u0085d"}
    raw = json.dumps(odd, ensure_ascii=False)
    assert "\u2028" in raw
    wire.get(EVENTS).mock(return_value=stream(frame(odd, text=raw)))
    assert api.call("wait_for", "i") == odd


@pytest.mark.parametrize(
    "odd",
    [
        b"event: intent.in_progress\ndata: {not json\n\n",
        b"event: intent.in_progress\ndata: []\n\n",
        b'event: intent.in_progress\ndata: {"seq": "one"}\n\n',
        b"event: intent.in_progress\ndata: \xff\xfe\n\n",
        b"event: intent.in_progress\n\n",
    ],
)
def test_a_damaged_frame_is_asked_for_again(api: Api, wire: respx.MockRouter, pauses: list[float], odd: bytes) -> None:
    good = stream(frame(event(1)), frame(DONE))
    wire.get(EVENTS).mock(side_effect=[stream(odd, frame(DONE)), good])
    assert api.collect("observe", "i") == [event(1), DONE]


def test_a_frame_that_never_comes_whole_is_skipped_in_the_end(
    api: Api, wire: respx.MockRouter, pauses: list[float]
) -> None:
    bad = b"event: intent.in_progress\ndata: {\n\n"
    wire.get(EVENTS).mock(side_effect=lambda _request: stream(bad, frame(DONE)))
    assert api.collect("observe", "i") == [DONE]


@pytest.mark.parametrize(
    "odd",
    [
        b"data: {}\n\n",
        b"event: message\ndata: {}\n\n",
        b": comment\n",
        b"retry: 10\nunknown\n\n",
        b"\n\n\n",
    ],
)
def test_what_is_no_event_is_passed_over(api: Api, wire: respx.MockRouter, odd: bytes) -> None:
    wire.get(EVENTS).mock(return_value=stream(odd, frame(event(1)), odd, frame(DONE)))
    assert api.collect("observe", "i") == [event(1), DONE]


def test_an_event_comes_once_however_often_it_is_sent(api: Api, wire: respx.MockRouter) -> None:
    wire.get(EVENTS).mock(return_value=stream(frame(event(1)), frame(event(1)), frame(DONE)))
    assert api.collect("observe", "i") == [event(1), DONE]


def test_waiting_has_a_time_limit(api: Api, wire: respx.MockRouter) -> None:
    wire.get(EVENTS).mock(side_effect=lambda _request: stream(TIMEOUT))
    with pytest.raises(TimeoutError):
        api.call("wait_for", "i", timeout_seconds=0.3)


def test_a_listener_goes_on_after_the_last_delivery(api: Api, wire: respx.MockRouter, pauses: list[float]) -> None:
    first = {"intent_id": "i", "seq": 100, "event_type": "intent.delivered", "status": "DELIVERED"}
    second = {**first, "intent_id": "j", "seq": 250}
    route = wire.get("/v1/agents/org/ws/name/intents/stream").mock(
        side_effect=[stream(frame(first), httpx.ReadError("reset")), stream(frame(first), frame(second))]
    )
    assert api.collect("listen", "agent://org/ws/name", most=2) == [first, second]
    assert [call.request.url.params["since"] for call in route.calls] == ["0", "100"]


# --- frames --------------------------------------------------------------------------------------


@pytest.mark.parametrize("end", ["\n", "\r\n", "\r"])
@pytest.mark.parametrize("size", [1, 2, 3, 7, 1000])
def test_frames_come_out_however_the_bytes_are_cut(end: str, size: int) -> None:
    text = (
        f"id: 1{end}event: intent.x{end}data: a{end}data:b\u2028{end}{end}: c{end}event:intent.y{end}data:  z{end}{end}"
    )
    raw = text.encode() + b"x"
    frames = Frames()
    found = [each for start in range(0, len(raw), size) for each in frames.feed(raw[start : start + size])]
    assert found == [("intent.x", "a\nb\u2028"), ("intent.y", " z")]


def test_a_line_without_end_is_refused() -> None:
    frames = Frames()
    frames.feed(b"x" * (16 << 20))
    with pytest.raises(StoreUnavailable):
        frames.feed(b"x")
