from __future__ import annotations

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st

from monitor.model import Message, RequestedCall, ReturnedResult, Span
from monitor.semconv.limits import ATTRIBUTE_LIMIT, MAX_MESSAGES, SPAN_LIMIT, cut, fit

IDS = ("ab" * 16, "cd" * 8)


def size(span: Span) -> int:
    return len(msgspec.msgpack.encode(span))


def test_a_span_that_fits_is_left_alone():
    span = Span(*IDS, "tool", arguments="x" * 90_000, result="y" * 90_000)
    assert fit(span) is span


def test_the_longest_texts_are_cut_first_and_told():
    span = Span(
        *IDS,
        "tool",
        arguments='{"id":7}',
        result="y" * ATTRIBUTE_LIMIT,
        error="z" * ATTRIBUTE_LIMIT,
    )
    found = fit(span)
    assert size(found) <= SPAN_LIMIT
    assert found.arguments == '{"id":7}'
    assert found.unseen == {"result": "content_truncated"}
    assert len(found.result) > 50_000
    assert len(found.error) > 50_000


def test_inputs_and_outputs_are_told_apart():
    small = (Message("assistant", "done"),)
    large = tuple(
        Message("tool", None, (), (ReturnedResult("c", "t", "r" * 9000),)) for _ in range(40)
    )
    found = fit(Span(*IDS, "llm", inputs=large, outputs=small))
    assert found.outputs == small
    assert found.unseen == {"input": "content_truncated"}
    assert len(found.inputs) == 40
    assert size(found) <= SPAN_LIMIT


def test_too_many_messages_lose_those_in_the_middle():
    many = tuple(Message("user", str(n)) for n in range(2000))
    found = fit(Span(*IDS, "llm", inputs=many))
    assert [m.text for m in found.inputs[:3]] == ["0", "1", str(2000 - MAX_MESSAGES + 2)]
    assert (len(found.inputs), found.inputs[-1].text) == (MAX_MESSAGES, "1999")
    assert found.unseen == {"input": "content_truncated"}


def test_a_span_that_is_large_by_the_number_of_its_calls():
    calls = tuple(RequestedCall("t" * 200, "c" * 200, "{}") for _ in range(MAX_MESSAGES))
    found = fit(Span(*IDS, "llm", outputs=(Message("assistant", None, calls),) * 3))
    assert size(found) <= SPAN_LIMIT
    assert found.unseen == {"output": "content_truncated"}
    assert found.outputs[0].calls


def test_spans_that_differ_only_behind_the_cut_stay_different():
    first, second = (
        fit(Span(*IDS, "tool", arguments="a" * 120_000, result="b" * 120_000 + end))
        for end in ("", "!")
    )
    assert first.result != second.result


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.integers(0, 150_000), max_size=6),
    st.integers(0, 600),
    st.integers(0, 150_000),
    st.sampled_from(["x", "é", "😀", "\u0001"]),
)
def test_every_span_fits_and_keeps_its_shape(texts, calls, argument, letter):
    span = Span(
        *IDS,
        "llm",
        arguments=letter * argument,
        inputs=tuple(Message("user", letter * n) for n in texts),
        outputs=(Message("assistant", None, (RequestedCall("t", "c", letter * 400),) * calls),),
    )
    found = fit(span)
    assert size(found) <= SPAN_LIMIT
    if size(span) <= SPAN_LIMIT:
        assert found == span
    else:
        assert found.unseen
    assert fit(found) == found


@given(st.text(max_size=300), st.integers(100, 300))
def test_cut_respects_bytes_and_characters(text, limit):
    found = cut(text, limit)
    assert len(found.encode()) <= limit
    assert (found == text) == (len(text.encode()) <= limit)
