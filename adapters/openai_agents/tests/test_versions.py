"""Records of one version of the SDK are read by another: what each leaves out or adds is no matter."""

from __future__ import annotations

from typing import Any

from openai.types.responses import ResponseFunctionToolCall, ResponseOutputMessage

from stepfast_openai_agents._stream import events_of
from stepfast_openai_agents._values import pack_response, unpack_response

# As version 0.13 with openai 2.44 wrote it.
OLD: dict[str, Any] = {
    "output": [
        {
            "arguments": '{"a": 1}',
            "call_id": "call_1",
            "name": "add",
            "type": "function_call",
            "id": "fc_1",
            "status": "completed",
        },
        {
            "id": "msg_1",
            "content": [{"annotations": [], "text": "hello", "type": "output_text", "logprobs": []}],
            "role": "assistant",
            "status": "completed",
            "type": "message",
        },
    ],
    "usage": {
        "requests": 1,
        "input_tokens": 10,
        "input_tokens_details": {"cached_tokens": 3},
        "output_tokens": 5,
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": 15,
        "request_usage_entries": [
            {
                "input_tokens": 10,
                "output_tokens": 5,
                "total_tokens": 15,
                "input_tokens_details": {"cached_tokens": 3},
                "output_tokens_details": {"reasoning_tokens": 0},
            }
        ],
    },
    "response_id": "resp_1",
    "request_id": None,
    "raw_usage": None,
}


def test_a_record_of_the_oldest_version_is_read() -> None:
    response = unpack_response(OLD)
    call, message = response.output
    assert isinstance(call, ResponseFunctionToolCall)
    assert isinstance(message, ResponseOutputMessage)
    assert message.content[0].text == "hello"  # type: ignore[union-attr]
    assert (response.usage.total_tokens, response.usage.input_tokens_details.cached_tokens) == (15, 3)


def test_a_record_of_a_newer_version_is_read() -> None:
    newer = {
        **OLD,
        "output": [*OLD["output"], {"type": "telepathy", "thought": "42"}],
        "usage": {**OLD["usage"], "seconds": 3},
        "carbon": 1,
    }
    output: list[Any] = unpack_response(newer).output
    assert len(output) == 3
    assert output[2] == {"type": "telepathy", "thought": "42"}


def test_what_was_read_is_written_the_same() -> None:
    assert pack_response(unpack_response(OLD))["output"] == OLD["output"]


def test_a_record_of_a_plain_call_is_told_as_a_stream() -> None:
    events = list(events_of(OLD))
    assert [e.sequence_number for e in events] == list(range(len(events)))
    completed = events[-1]
    assert completed.type == "response.completed"
    assert completed.response.id == "resp_1"
    assert completed.response.usage.total_tokens == 15
    assert completed.response.usage.input_tokens_details.cached_tokens == 3
