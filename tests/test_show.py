"""`agenttrust show`, on the embedded broker."""

from __future__ import annotations

import io
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from monitor.model import Close, Lost, Observed, Pin, Reading, Span, Step, Unknown
from streams.history import History, Moment
from streams.refold import Extent, extents
from streams.show import document, show_text
from tests.journals import Journal, Site, golden, run_of, trajectory  # noqa: F401
from tests.services import broker  # noqa: F401
from tests.test_board import label, violation

A, B = trajectory(1), trajectory(2)


@pytest.fixture
def site(broker, monkeypatch) -> Site:  # noqa: F811
    return Site(broker, monkeypatch)


@pytest.fixture
def journal() -> Journal:
    """A run whose forbidden call arrives late, between records of another."""
    found = Journal()
    llm, tool, answer, root = run_of(A, "ticket.purge")
    found.add(*run_of(B)[:2])
    found.add(answer)
    found.add(root, *run_of(B)[2:])
    last = found.add(tool)
    found.add(Lost(A, "bad_span", "spans:0:7:1"))
    last = found.add(llm)
    found.add(Close(A, "idle", last), after=60_000)
    return found


def shown(site: Site, capsys, *args: str) -> dict:
    assert site.run("show", "--json", *args) == 0
    return json.loads(capsys.readouterr().out)


@pytest.mark.services
def test_the_text_is_as_it_was(site, journal, capsys, golden, monkeypatch):  # noqa: F811
    monkeypatch.setenv("COLUMNS", "140")
    site.fill(journal, site.messages(journal.events()))
    assert site.run("show", A[:8]) == 0
    golden("show.txt", capsys.readouterr().out)


@pytest.mark.services
def test_every_event_has_its_cause(site, journal, capsys):
    events = [event for event in journal.events() if event.trajectory == A]
    site.fill(journal, site.messages(journal.events()))
    found = shown(site, capsys, A)
    assert [e["id"] for m in found["revisions"] for e in m["events"]] == [e.id for e in events]
    assert all(e["published"] for m in found["revisions"] for e in m["events"])
    causes = [(m["offset"], m["cause"], m["span_id"]) for m in found["revisions"]]
    assert causes[-1] == (6, "close", None)
    assert (3, "span", "2" * 16) in causes  # the forbidden call
    assert (4, "lost", None) in causes
    raised = [
        m["offset"] for m in found["revisions"] for e in m["events"]
        if e["value"].get("code") == "POLICY_TOOL_FORBIDDEN" and e["value"]["state"] == "raised"
    ]  # fmt: skip
    assert raised == [3, 5]  # it comes again when an earlier step comes to light
    assert found["arrivals"] == 6
    assert [step["type"] for step in found["steps"]] == ["user_request", "tool_call", "answer"]
    assert {v["code"] for v in found["violations"]} >= {"POLICY_TOOL_FORBIDDEN"}
    assert found["labels"][0]["closed"] == "idle"


@pytest.mark.services
def test_a_beginning_is_enough_when_one_trajectory_has_it(site, journal, capsys):
    twin = A[:31] + "b"
    journal.add_run(twin)
    site.fill(journal, site.messages(journal.events()))
    assert shown(site, capsys, B[:8])["trajectory_id"] == B
    assert shown(site, capsys, B[:20].upper())["trajectory_id"] == B
    assert shown(site, capsys, twin)["trajectory_id"] == twin
    assert site.run("show", A[:8]) == 2
    told = capsys.readouterr().err
    assert f"2 trajectories begin with {A[:8]}: {A}, {twin}" in told


@pytest.mark.services
def test_what_emits_nothing_is_found_in_the_journal(site, capsys):
    journal = Journal()
    journal.add(Lost(A, "bad_span", "spans:0:7:1"))
    site.fill(journal)
    found = shown(site, capsys, A[:8])
    assert (found["trajectory_id"], found["arrivals"]) == (A, 1)
    assert (found["labels"], found["steps"], found["revisions"]) == ([], [], [])


@pytest.mark.services
def test_what_is_not_as_published_is_said(site, journal, capsys):
    site.fill(journal, site.messages(journal.events())[:-1])
    assert site.run("show", A) == 0
    told = capsys.readouterr().out
    assert told.count("NOT PUBLISHED") == 1
    assert "replay --verify" in told


@pytest.mark.services
def test_what_the_journal_no_longer_holds_is_told_from_the_topics(
    site, journal, capsys, monkeypatch
):
    events = [event for event in journal.events() if event.trajectory == A]
    site.fill(journal, site.messages(journal.events()))
    starts: list[int] = []

    async def cut(settings, places):
        found = await extents(settings, places)
        return {
            p: Extent(starts[-1], e.end) if p.topic.endswith(".journal") else e
            for p, e in found.items()
        }

    monkeypatch.setattr("streams.history.extents", cut)
    for start in (4, 7):
        starts.append(start)
        found = shown(site, capsys, A)
        assert [e["id"] for m in found["revisions"] for e in m["events"]] == [e.id for e in events]
        assert {m["cause"] for m in found["revisions"]} == {None}
    assert site.run("show", A) == 0
    assert "no longer holds this trajectory" in capsys.readouterr().out


@pytest.mark.services
@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("00000001-no", "is not the beginning of a trace id: 8 to 32 hex digits"),
        ("0000001", "is not the beginning of a trace id"),
        ("99999999", "no trajectory is known whose id begins with 99999999"),
        ("9" * 32, "no trajectory " + "9" * 32 + " is known"),
    ],
)
def test_unknown_ids_are_one_line(site, journal, capsys, text, words):
    site.fill(journal, site.messages(journal.events()))
    assert site.run("show", text) == 2
    told = capsys.readouterr().err
    assert words in told
    assert told.count("\n") == 1


@given(st.text())
def test_no_span_can_command_the_terminal_or_use_markup(hostile):
    hostile = f"\x1b[2J\x9b[bold]{hostile}\u202e"
    step = Step("tool_call", tool=hostile, arguments={hostile: hostile}, result=hostile,
                agent=hostile, text=hostile, error=None)  # fmt: skip
    events = [
        label(agent=hostile, conversation_id=hostile, service=hostile, pending=(hostile,)),
        violation(code=hostile, message=hostile, evidence=hostile),
    ]
    arrivals = [
        Moment(0, 1, Observed(Span(A, hostile, "tool", hostile)), events),
        Moment(0, 1, Lost(A, hostile, hostile), []),
        Moment(0, 1, Reading(A, hostile, hostile, ""), []),
        Moment(0, 1, Pin(A, hostile), []),
        Moment(0, 1, Unknown(A, hostile), []),
        Moment(0, None, None, []),
    ]
    steps = [step, Step("answer", text=hostile), Step("tool_call", tool=hostile, error=hostile)]
    told = History(A, 1, 1, {}, steps, arrivals, {events[0].id})
    out = io.StringIO()
    show_text(told, Console(file=out, width=1000, color_system=None, highlight=False))
    assert all(c.isprintable() or c == "\n" for c in out.getvalue())
    assert "[bold]" in out.getvalue()
    assert json.dumps(document(told)).isascii()
