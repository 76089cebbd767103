from __future__ import annotations

import json

import msgspec
import pytest

from monitor.model import Message, RequestedCall, ReturnedResult
from monitor.semconv.limits import MAX_MESSAGES
from monitor.semconv.messages import parts_text, read, split


def read_one(message: object):
    return read(msgspec.Raw(json.dumps(message).encode()))


def parts(*found: object, role: str = "assistant") -> dict:
    return {"role": role, "parts": list(found)}


CALL = {"type": "tool_call", "id": "c1", "name": "get", "arguments": {"a": 499.0}}
ASKED = RequestedCall("get", "c1", '{"a":499.0}')


def test_parts_become_text_calls_and_results():
    message, unseen = read_one(
        parts(
            {"type": "text", "content": "one"},
            {"type": "reasoning", "content": "hm"},
            CALL,
            {"type": "text", "content": "two"},
            {"type": "tool_call_response", "id": "c1", "name": "get", "response": "ok"},
            {"type": "blob", "mime_type": "image/png", "content": "AAAA"},
        )
    )
    assert message == Message(
        "assistant", "one\ntwo", (ASKED,), (ReturnedResult("c1", "get", "ok"),)
    )
    assert unseen is None


@pytest.mark.parametrize(
    ("arguments", "kept"),
    [
        ('{"a": 499.0}', '{"a":499.0}'),
        (json.dumps('{"a": 499.0}'), '{"a":499.0}'),
        ([1], "[1]"),
        (7, "7"),
        ("not json", "not json"),
        ("", None),
        (None, None),
        ("__REDACTED__", None),
    ],
)
def test_arguments_of_a_requested_call(arguments, kept):
    message, unseen = read_one(parts(CALL | {"arguments": arguments}))
    assert message.calls == (RequestedCall("get", "c1", kept),)
    assert unseen is None


def test_numbers_in_arguments_stand_as_they_were_written():
    raw = msgspec.Raw(
        b'{"role":"assistant","parts":[{"type":"tool_call","name":"t",'
        b'"arguments":{"a": 1E2, "b": 2.50, "c": 12345678901234567890123}}]}'
    )
    assert read(raw)[0].calls[0].arguments == '{"a":1E2,"b":2.50,"c":12345678901234567890123}'


@pytest.mark.parametrize("key", ["response", "result"])
@pytest.mark.parametrize(
    ("value", "kept"), [({"a": 1}, '{"a":1}'), ("x", "x"), (None, "null"), ([], "[]"), (0, "0")]
)
def test_a_result_lies_under_either_key(key, value, kept):
    part = {"type": "tool_call_response", "id": "c1", key: value}
    message, unseen = read_one(parts(part, role="tool"))
    assert message.results == (ReturnedResult("c1", None, kept),)
    assert unseen is None


def test_a_result_that_is_not_there_is_none():
    message, unseen = read_one(parts({"type": "tool_call_response", "id": "c1"}, role="tool"))
    assert message.results == (ReturnedResult("c1"),)
    assert unseen is None


@pytest.mark.parametrize(
    "part",
    [
        {"type": "text"},
        {"type": "text", "content": None},
        {"type": "text", "content": "[REDACTED]"},
        {"type": "tool_call", "id": "c2"},
        {"type": "tool_call", "name": ""},
        {"type": "tool_call", "name": ["x"]},
        7,
        None,
    ],
)
def test_one_part_that_shows_nothing_never_hides_the_others(part):
    message, unseen = read_one(parts(CALL, part, {"type": "text", "content": "t"}))
    assert message == Message("assistant", "t", (ASKED,))
    assert unseen == "content_hidden"


@pytest.mark.parametrize(
    ("name", "tool"), [("true", "true"), (True, "true"), (5, "5"), ("null", "null")]
)
def test_a_tool_or_id_named_like_a_literal_stays_text(name, tool):
    message, unseen = read_one(parts(CALL | {"name": name, "id": name}))
    assert message.calls == (RequestedCall(tool, tool, '{"a":499.0}'),)
    assert unseen is None


@pytest.mark.parametrize(
    ("role", "gives"),
    [
        ("model", "assistant"),
        ("Human", "user"),
        ("developer", "system"),
        ("critic", "critic"),
        (None, "unknown"),
        (7, "7"),
    ],
)
def test_roles(role, gives):
    assert read_one({"role": role, "parts": []})[0].role == gives


def test_a_message_may_carry_its_text_directly():
    assert read_one({"role": "user", "content": "hi"}) == (Message("user", "hi"), None)
    assert read_one({"role": "user", "content": ["a"]}) == (Message("user", "a"), None)
    assert read_one({"role": "user", "content": None}) == (Message("user"), None)


@pytest.mark.parametrize("message", [7, None, []])
def test_what_is_no_message_is_hidden(message):
    assert read_one(message) == (Message("unknown"), "content_hidden")


def test_a_message_of_which_the_parts_cannot_be_read_keeps_its_role():
    assert read_one({"role": "user", "parts": 7}) == (Message("user"), "content_hidden")


def test_a_bare_text_is_a_message_of_nobody():
    assert read_one("text") == (Message("unknown", "text"), None)


def test_half_a_surrogate_pair_in_a_message():
    raw = msgspec.Raw(rb'{"role":"assistant","parts":[{"type":"text","content":"a\ud83d"}]}')
    assert read(raw) == (Message("assistant", "a\ufffd"), None)
    found, unseen = split(r'[{"role":"user","content":"a\ud83d"}]')
    assert read(found[0]) == (Message("user", "a\ufffd"), None)
    assert unseen is None


def test_parts_beyond_the_bound_are_told():
    message, unseen = read_one(parts(*[CALL] * (MAX_MESSAGES + 1)))
    assert (len(message.calls), unseen) == (MAX_MESSAGES, "content_truncated")


ONE = parts({"type": "text", "content": "t"})


@pytest.mark.parametrize(
    "value",
    [
        json.dumps([ONE]),
        " " + json.dumps([ONE]),
        json.dumps(json.dumps([ONE])),
        json.dumps(ONE),
        json.dumps({"messages": [ONE]}),
        [ONE],
        {"messages": [ONE]},
    ],
)
def test_messages_come_in_many_wrappings(value):
    found, unseen = split(value)
    assert [read(m) for m in found] == [(Message("assistant", "t"), None)]
    assert unseen is None


def test_messages_that_were_cut_off_show_what_is_left():
    whole = json.dumps([parts(CALL), parts({"type": "text", "content": "the answer is 42"})])
    found, unseen = split(whole[:-12])
    assert unseen == "content_truncated"
    assert [read(m)[0] for m in found] == [
        Message("assistant", None, (ASKED,)),
        Message("assistant", "the answe"),
    ]


@pytest.mark.parametrize(
    ("value", "why"),
    [
        (None, None),
        ("", None),
        ("[]", None),
        ("hello", "content_hidden"),
        ("7", "content_hidden"),
        ("<elided>", "content_hidden"),
        ("[" * 100_000, "content_truncated"),
        ('[{"a":' * 600 + "1" + "}]" * 600, "content_truncated"),
    ],
)
def test_values_that_hold_no_messages(value, why):
    assert split(value) == ((), why) or split(value) == ([], why)


def test_instructions():
    value = json.dumps([{"type": "text", "content": "a"}, {"type": "text", "content": "b"}])
    assert parts_text(value) == ("a\nb", None)
    assert parts_text("plain words") == ("plain words", None)
    assert parts_text('[{"type":"text"}]') == (None, "content_hidden")
    assert parts_text(None) == (None, None)
