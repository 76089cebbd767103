from __future__ import annotations

import json

import jsonschema
import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from monitor.label import LABEL, VIOLATION, ContractRef, Event, Label, Violation
from monitor.model import Coverage
from streams.events import (
    EventWriter,
    NotAnEventError,
    markdown,
    percent,
    read,
    schema,
    time_text,
)
from streams.journal import partition_of

T = "0af7651916cd43dd8448eb211c80319c"
REF = ContractRef("support", 3, "d" * 32)
BODY = Label(
    trajectory_id=T,
    conversation_id=None,
    agent="a\x1b[2J",
    service="s",
    attributes={"tenant": "x"},
    contract=REF,
    verdict="violated",
    phase="provisional",
    coverage=Coverage("partial", ("late",)),
    layers={"policy": "fail", "grounding": "off", "trajectory": "open"},
    violations=("POLICY_TOOL_FORBIDDEN",),
    pending=("answer",),
    steps=2,
    revision=1,
    closed=None,
    policy_set="p" * 32,
    fold_version=1,
)
FOUND = Violation(
    id="v" * 32,
    state="raised",
    trajectory_id=T,
    conversation_id="c",
    agent=None,
    service=None,
    attributes={},
    contract=REF,
    layer="policy",
    code="POLICY_TOOL_FORBIDDEN",
    severity="critical",
    step=1,
    call_id="c1",
    span_id="00" * 8,
    tool="ticket.purge",
    message="“purge” is forbidden",
    evidence=None,
    revision=1,
)
EVENTS = [
    Event("id 1%\n", LABEL, 1_700_000_000_123, T, BODY),
    Event("id2", VIOLATION, 0, T, FOUND),
]
WRITER = EventWriter(labels="x.labels", violations="x.violations", partitions=12)


@pytest.mark.parametrize("event", EVENTS, ids=["label", "violation"])
def test_an_event_is_a_cloudevent_in_binary_mode(event):
    message = WRITER.message(event)
    headers = dict(message.headers)
    assert headers == {
        "ce_specversion": b"1.0",
        "ce_id": b"id%201%25%0A" if event is EVENTS[0] else b"id2",
        "ce_source": b"/agenttrust/monitor",
        "ce_type": event.type.encode(),
        "ce_time": b"2023-11-14T22:13:20.123Z"
        if event is EVENTS[0]
        else b"1970-01-01T00:00:00.000Z",
        "ce_subject": T.encode(),
        "content-type": b"application/json",
    }
    assert message.key == T.encode()
    assert message.partition == partition_of(T, 12)
    assert message.topic == ("x.labels" if event.type == LABEL else "x.violations")
    assert read(message.headers, message.value) == event


@pytest.mark.parametrize("event", EVENTS, ids=["label", "violation"])
def test_values_follow_their_published_schema(event):
    published = schema(type(event.body), event.type)
    jsonschema.Draft202012Validator.check_schema(published)
    value = json.loads(WRITER.message(event).value)
    jsonschema.validate(value, published)
    assert set(value) == set(published["$defs"][type(event.body).__name__]["required"])
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(value | {"revision": "1"}, published)


def test_a_later_version_may_add_fields():
    message = WRITER.message(EVENTS[0])
    value = msgspec.json.encode(json.loads(message.value) | {"new": 1})
    assert read(message.headers, value) == EVENTS[0]


@pytest.mark.parametrize(
    ("headers", "value"),
    [
        ([], b"{}"),
        ([("ce_type", b"other")], b"{}"),
        ([("ce_type", LABEL.encode())], b"{}"),
        ([("ce_type", LABEL.encode())], None),
        ([("ce_type", b"\xff")], b"\xff"),
        (WRITER.message(EVENTS[0]).headers, b"\xff"),
        (WRITER.message(EVENTS[0]).headers[:3], WRITER.message(EVENTS[0]).value),
    ],
)
def test_what_is_no_event_says_so(headers, value):
    with pytest.raises(NotAnEventError):
        read(headers, value)


@given(st.text())
def test_header_values_are_printable_and_reversible(text):
    from urllib.parse import unquote

    raw = percent(text)
    assert all(0x21 <= byte <= 0x7E and byte != 0x22 for byte in raw)
    if text.isprintable():
        assert unquote(raw.decode()) == text


@given(st.integers())
def test_any_time_can_be_written(milliseconds):
    assert len(time_text(milliseconds)) == 24


def test_the_page_shows_every_field():
    page = markdown()
    for field in (*Label.__struct_fields__, *Violation.__struct_fields__):
        assert f'"{field}"' in page
