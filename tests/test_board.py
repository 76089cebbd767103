from __future__ import annotations

import io

from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from monitor.label import LABEL, VIOLATION, ContractRef, Event, Label, Violation
from monitor.model import Coverage
from streams.board import Board, line

CONTRACT = ContractRef(name="desk", version=1, digest="d")


def label(trajectory="a" * 32, *, revision=1, contract=CONTRACT, **fields) -> Event:
    body = Label(
        **(
            {
                "trajectory_id": trajectory,
                "conversation_id": None,
                "agent": "helper",
                "service": "shop",
                "attributes": {},
                "contract": contract,
                "verdict": "open",
                "phase": "provisional",
                "coverage": Coverage("complete", ()),
                "layers": {},
                "violations": (),
                "pending": (),
                "steps": 3,
                "revision": revision,
                "closed": None,
                "policy_set": "p",
                "fold_version": 1,
            }
            | fields
        )
    )
    return Event(f"{trajectory}{contract}{revision}", LABEL, 0, trajectory, body)


def violation(id_="v1", **fields) -> Event:
    body = Violation(
        **(
            {
                "id": id_,
                "state": "raised",
                "trajectory_id": "a" * 32,
                "conversation_id": None,
                "agent": "helper",
                "service": "shop",
                "attributes": {},
                "contract": CONTRACT,
                "layer": "policy",
                "code": "POLICY_TOOL_FORBIDDEN",
                "severity": "error",
                "step": 1,
                "call_id": None,
                "span_id": None,
                "tool": "issue_refund",
                "message": "issue_refund is forbidden",
                "evidence": None,
                "revision": 1,
            }
            | fields
        )
    )
    return Event(f"{id_}:{body.state}", VIOLATION, 0, body.trajectory_id, body)


def text(renderable, width=120) -> str:
    out = io.StringIO()
    Console(file=out, width=width, color_system=None).print(renderable)
    return out.getvalue()


def test_the_newest_revision_is_shown_and_repeats_tell_nothing():
    board = Board()
    assert board.add(label(revision=2, verdict="violated", violations=("POLICY_TOOL_FORBIDDEN",)))
    assert not board.add(label(revision=2))
    assert not board.add(label(revision=1))
    shown = text(board.render(50, 120))
    assert "violated" in shown
    assert "POLICY_TOOL_FORBIDDEN" in shown
    assert "open" not in shown


def test_violations_are_told_once_below_the_table():
    board = Board()
    assert board.add(violation())
    assert not board.add(violation())
    assert board.add(violation(state="withdrawn"))
    assert text(board.render(50, 120)).count("POLICY_TOOL_FORBIDDEN") == 2


def test_a_trajectory_is_final_when_all_its_labels_are():
    board = Board()
    other = ContractRef(name="guard", version=1, digest="e")
    board.add(label(phase="final"))
    assert board.finals() == {"a" * 32}
    board.add(label(contract=other))
    assert board.finals() == set()
    board.add(label(contract=other, revision=2, phase="final"))
    assert board.finals() == {"a" * 32}


def test_contracts_and_run_names_have_columns_where_they_tell_something():
    board = Board({"a" * 32: "01-demo"})
    board.add(label())
    assert "contract" not in text(board.render(50, 120))
    assert "01-demo" in text(board.render(50, 120))
    board.add(label(contract=None))
    assert "contract" in text(board.render(50, 120))


def test_codes_can_be_read_in_a_narrow_terminal():
    board = Board()
    code = "SAFETY_FABRICATED_QUANTITY"
    board.add(label(verdict="violated", violations=(code,), agent="support_desk"))
    assert code in text(board.render(50, 80), 80)
    assert " prov. " in text(board.render(50, 80), 80)
    assert " provisional " in text(board.render(50, 100), 100)
    board.add(label(contract=None, verdict="violated", violations=(code,), agent="support_desk"))
    folded = [row[56:].strip() for row in text(board.render(50, 80), 80).splitlines()]
    assert "".join(folded).count(code) == 2


def test_what_could_not_be_judged_says_why():
    board = Board()
    board.add(label(verdict="unassessed", coverage=Coverage("partial", ("content_hidden",))))
    assert "content_hidden" in text(board.render(50, 120))


def test_newest_labels_are_seen_though_each_takes_several_lines():
    board = Board()
    for number in range(20):
        name = f"{number:032x}"[::-1]
        codes = ("POLICY_TOOL_FORBIDDEN", "SAFETY_EMPTY_ANSWER")
        reasons = Coverage("partial", ("content_hidden",))
        board.add(label(name, verdict="violated", violations=codes, coverage=reasons))
    rows = text(board.render(12, 120)).splitlines()
    assert sum("violated" in row for row in rows) == 4
    assert any(f"{19:032x}"[::-1][:8] in row for row in rows)
    assert sum("violated" in row for row in text(board.render(2, 120)).splitlines()) == 1


def test_only_the_newest_rows_are_shown_and_kept():
    board = Board()
    for number in range(1100):
        board.add(label(f"{number:08d}" + "0" * 24))
    assert len(board.labels) == 1000
    shown = text(board.render(2, 120))
    assert "00001099" in shown
    assert "00001097" not in shown


@given(st.text())
def test_no_event_can_command_the_terminal_or_use_markup(hostile):
    hostile = f"\x1b[2J\x9b[bold]{hostile}\u202e"
    board = Board({"a" * 32: hostile})
    events = [
        label(agent=hostile, violations=(hostile,), coverage=Coverage("partial", (hostile,))),
        violation(agent=hostile, code=hostile, message=hostile),
        label(hostile, contract=ContractRef(name=hostile, version=1, digest="d")),
    ]
    for event in events:
        board.add(event)
    lines = [line(event) for event in events]
    for shown in (text(board.render(50, 120)), *map(text, lines)):
        assert all(c.isprintable() or c == "\n" for c in shown)
    assert "[bold]" in text(lines[1], 1000)
