from __future__ import annotations

import json

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from monitor.semconv.content import redacted, shallow, shown, shown_raw, without_lone_surrogates
from monitor.semconv.limits import ATTRIBUTE_LIMIT, MAX_DEPTH


@pytest.mark.parametrize(
    ("value", "gives"),
    [
        ('{"amount": 499.0, "n": 1E400, "t": "a  b"}', '{"amount":499.0,"n":1E400,"t":"a  b"}'),
        (" [1,\n 2.50] ", "[1,2.50]"),
        ({"a": [1, 2.5, None, True]}, '{"a":[1,2.5,null,true]}'),
        ([], "[]"),
        ("plain text", "plain text"),
        ("true", "true"),
        ("5", "5"),
        ("null", "null"),
        (True, "true"),
        (5, "5"),
        (2.5, "2.5"),
        (b"\x00\x01", '"AAE="'),
        (json.dumps(json.dumps({"a": 1})), '{"a":1}'),
        (json.dumps("hello"), "hello"),
        ('"unclosed', '"unclosed'),
        ("{'a': 1}", '{"a":1}'),
        ("{'a': <Ticket>}", "{'a': <Ticket>}"),
        ("[note] see below", "[note] see below"),
        ("{} and more", "{} and more"),
        ('{"a": NaN, "b": [Infinity]}', '{"a":null,"b":[null]}'),
        (r'{"a": "\ud83d", "b": "\ud83d\ude00"}', r'{"a":"\ufffd","b":"\ud83d\ude00"}'),
    ],
)
def test_what_is_shown(value, gives):
    assert shown(value) == (gives, None)


@pytest.mark.parametrize("value", [None, "", "  ", "\n"])
def test_absence_is_no_evidence_of_anything(value):
    assert shown(value) == (None, None)


@pytest.mark.parametrize(
    "value",
    [
        "__REDACTED__",
        "[REDACTED]",
        "<redacted>",
        "<elided>",
        "  <ELIDED>\n",
        "***",
        "REDACTED",
        "[Filtered]",
        "<<hidden>>",
        "[Scrubbed due to 'password']",
        json.dumps("__REDACTED__"),
    ],
)
def test_a_marker_in_place_of_the_whole_value_is_hidden_content(value):
    assert shown(value) == (None, "content_hidden")


@pytest.mark.parametrize(
    "value",
    ["redacted", "Removed.", "the value is [REDACTED]", "**bold**", "hidden", "<elided> items: 3"],
)
def test_words_that_only_sound_like_markers_are_content(value):
    assert not redacted(value)
    assert shown(value) == (value, None)


@pytest.mark.parametrize("value", ['{"a": "b', '[{"a": 1}, {"b"', "{", '{"a": 1, "b": [1, 2'])
def test_json_whose_end_is_missing_is_truncated(value):
    assert shown(value) == (value, "content_truncated")


def test_long_values_end_in_a_note_and_stay_different():
    first, second = "x" * ATTRIBUTE_LIMIT + "a", "x" * ATTRIBUTE_LIMIT + "b"
    for text in (first, json.dumps({"k": first}), json.dumps([first])):
        found, why = shown(text)
        assert why == "content_truncated"
        assert len(found.encode()) <= ATTRIBUTE_LIMIT
        assert "… [cut: " in found
    assert shown(first) != shown(second)


def test_64_000_emoji_are_measured_in_bytes():
    found, why = shown("😀" * 64_000)
    assert why == "content_truncated"
    assert ATTRIBUTE_LIMIT - 4 < len(found.encode()) <= ATTRIBUTE_LIMIT
    assert shown("😀" * (ATTRIBUTE_LIMIT // 4)) == ("😀" * (ATTRIBUTE_LIMIT // 4), None)


@pytest.mark.parametrize("depth", [MAX_DEPTH + 1, 900, 100_000])
def test_deep_json_is_not_kept(depth):
    for text in ("[" * depth + "]" * depth, '{"a":' * depth + "1" + "}" * depth, "[1," * depth):
        assert shown(text) == (None, "content_truncated")
        assert shown_raw(text.encode()) == (None, "content_truncated")


def test_depth_counts_brackets_outside_of_strings():
    assert shallow("[" * MAX_DEPTH + "]" * MAX_DEPTH)
    assert shallow(json.dumps({"text": "[{" * 500}))
    assert shallow("[]" * 10_000)
    assert not shallow('"' + "[" * 200 + '"' + "[" * 200)


def test_an_unclosed_string_full_of_quotes_is_scanned_once():
    assert shallow("[" * 60 + "{" * 60 + "}" * 60 + '"' + r"\"" * 2_000_000) is False


@given(
    st.recursive(st.none() | st.floats(allow_nan=False, allow_infinity=False) | st.text(), st.lists)
)
def test_shown_json_stays_the_same_value(value):
    text = json.dumps([value])
    found, why = shown(text)
    assert why is None
    assert json.loads(found) == json.loads(text)
    assert shown(found) == (found, None)


@given(st.text(alphabet='\\ud83dDeE0{}":a, ', max_size=60))
def test_mending_surrogates_leaves_only_pairs(text):
    mended = without_lone_surrogates(text)
    try:
        value = json.loads(mended)
    except ValueError:
        return
    msgspec.json.encode(value)
