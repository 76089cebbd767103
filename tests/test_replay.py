"""`agenttrust replay`, on the embedded broker."""

from __future__ import annotations

import contextlib
import json
import os
import re
import sys
import time

import msgspec
import pytest

from monitor.label import encode
from monitor.model import FOLD_VERSION
from streams import cli
from streams.events import Message, read, time_text
from streams.refold import Extent, extents
from streams.topic_log import Raw
from tests.deployment import CONTRACT, Deployment, otlp_trace, settings
from tests.journals import (  # noqa: F401
    HOUR,
    MINUTE,
    Journal,
    Site,
    golden,
    run_of,
    trajectory,
)
from tests.services import broker, redis_url, wait_for  # noqa: F401

pytestmark = pytest.mark.services
A, B, C = (trajectory(n) for n in (1, 2, 3))
OTHER = trajectory(9, partition=0)


@pytest.fixture
def site(broker, monkeypatch) -> Site:  # noqa: F811
    return Site(broker, monkeypatch)


@pytest.fixture
def journal() -> Journal:
    """Two whole runs in one partition, one in the other, and one that is still open."""
    found = Journal()
    found.add_run(A, "ticket.purge")
    found.add_run(OTHER)
    found.add_run(B)
    found.add_run(C, close=False)
    return found


def rows(capsys) -> list[dict]:
    return [json.loads(text) for text in capsys.readouterr().out.splitlines()]


def verified(site: Site, capsys, *args: str) -> tuple[int, list[dict], dict]:
    """Exit status, what differs or is not compared, and the summary."""
    status = site.run("replay", "--verify", "--json", *args)
    out = capsys.readouterr()
    assert out.out, out.err
    *found, summary = map(json.loads, out.out.splitlines())
    assert summary["kind"] == "summary"
    return status, found, summary


def test_what_was_published_is_verified(site, journal, capsys):
    published = site.messages(journal.events())
    site.fill(journal, [*published, *published[2:5]])  # repeats, as after a crash
    status, found, summary = verified(site, capsys)
    assert (status, found) == (0, [])
    assert summary["alike"] == len(published)
    assert (summary["compared"], summary["open"]) == (4, 1)


def test_the_events_come_out_as_they_were_published(site, journal, capsys):
    events = journal.events()
    site.fill(journal)
    assert site.run("replay", "--json") == 0
    found = rows(capsys)
    assert {row["id"]: row["value"] for row in found} == {
        event.id: json.loads(encode(event)) for event in events
    }
    assert site.run("replay", "--json", "--trajectory", A) == 0
    assert {row["id"] for row in rows(capsys)} == {e.id for e in events if e.trajectory == A}
    assert site.run("replay", "--json", "--partition", "0") == 0
    assert {row["key"] for row in rows(capsys)} == {OTHER}


# -- doctored journals -----------------------------------------------------------------------


def kinds(found: list[dict]) -> set[tuple[str, str]]:
    return {(row["kind"], row["trajectory_id"]) for row in found}


def doctored(site: Site, journal: Journal, capsys, change) -> set[tuple[str, str]]:
    """What `--verify` finds when the journal of A's partition was changed after the fact."""
    site.fill(journal.changed(1, change), site.messages(journal.events()))
    status, found, summary = verified(site, capsys)
    assert status == (1 if summary["missing"] + summary["extra"] + summary["changed"] else 0)
    return kinds(found)


def test_an_altered_entry_is_found(site, journal, capsys):
    def change(raws):
        value = raws[1].value.replace(b"call-1", b"call-2")
        assert value != raws[1].value
        return [raws[0], Raw(1, 1, raws[1].timestamp, value), *raws[2:]]

    assert doctored(site, journal, capsys, change) == {("missing", A), ("extra", A)}


def test_a_dropped_entry_is_found(site, journal, capsys):
    # The place is kept, as deleting in the middle of a log cannot do but rewriting it can.
    def change(raws):
        return [raws[0], Raw(1, 1, raws[1].timestamp, b""), *raws[2:]]

    assert doctored(site, journal, capsys, change) == {("missing", A), ("extra", A)}


def test_a_log_in_which_entries_have_moved_up_is_found(site, journal, capsys):
    found = doctored(site, journal, capsys, lambda raws: [*raws[:1], *raws[2:]])
    assert found == {("missing", A), ("extra", A)}


def test_reordered_entries_are_found(site, journal, capsys):
    def change(raws):
        one, other = raws[1], raws[2]
        moved = [Raw(1, 1, one.timestamp, other.value), Raw(1, 2, other.timestamp, one.value)]
        return [raws[0], *moved, *raws[3:]]

    assert doctored(site, journal, capsys, change) == {("missing", A), ("extra", A)}


def test_a_trajectory_taken_out_whole_is_found(site, journal, capsys):
    def change(raws):
        return [
            Raw(1, r.offset, r.timestamp, b"" if A.encode() in r.value else r.value) for r in raws
        ]

    assert doctored(site, journal, capsys, change) == {("extra", A)}


def test_a_log_cut_at_its_end_is_found(site, journal, capsys):
    open_run = [("extra", C)]
    assert doctored(site, journal, capsys, lambda raws: raws[:-4]) == set(open_run)


# -- doctored events -------------------------------------------------------------------------


def test_missing_extra_and_changed_events_are_named(site, journal, capsys):
    messages = site.messages(journal.changed(0, lambda _: ()).events())
    lost, changed, repeated = messages[0], messages[1], messages[2]
    altered = msgspec.structs.replace(changed, value=changed.value.replace(b"desk", b"dusk"))
    doubtful = msgspec.structs.replace(repeated, value=repeated.value.replace(b"desk", b"dusk"))
    foreign = Journal()
    foreign.now += MINUTE
    foreign.add_run(trajectory(4))
    extra = site.messages(foreign.events())
    site.fill(journal, [altered, *messages[2:], doubtful, *extra])
    status, found, summary = verified(site, capsys, "--partition", "1")
    assert status == 1
    assert summary["missing"] == 1
    assert summary["changed"] == 2
    assert summary["extra"] == len(extra)
    named = {row["kind"]: row for row in found if row["trajectory_id"] == A}
    assert named["missing"]["id"] == dict(lost.headers)["ce_id"].decode()
    assert "desk v1 POLICY_TOOL_" in named["missing"]["said"]
    assert {row["id"] for row in found if row["kind"] == "changed"} == {
        dict(m.headers)["ce_id"].decode() for m in (changed, repeated)
    }
    last = len([m for m in messages[1:] if m.topic == repeated.topic and m.partition == 1])
    assert f"{repeated.topic}:1:{last}" in {row["place"] for row in found}


def test_an_event_in_a_wrong_partition_is_found(site, journal, capsys):
    messages = site.messages(journal.events())
    astray = msgspec.structs.replace(next(m for m in messages if m.partition), partition=0)
    site.fill(journal, [*messages, astray])
    status, found, _ = verified(site, capsys)
    assert status == 1
    assert [(row["kind"], row["trajectory_id"]) for row in found] == [("extra", A)]


def test_what_is_no_event_is_told_and_passed_over(site, journal, capsys):
    junk = Message(site.plan.labels.name, 1, None, b"\x1b[2J")
    site.fill(journal, [junk, *site.messages(journal.events())])
    assert site.run("replay", "--verify") == 0
    told = capsys.readouterr().err
    assert "no event of ours" in told
    assert "\x1b" not in told


def test_another_version_of_the_fold_is_said_and_not_held_against_it(site, journal, capsys):
    messages = [
        msgspec.structs.replace(
            m, value=m.value.replace(b'"fold_version":%d' % FOLD_VERSION, b'"fold_version":0')
        ) if m.key == A.encode() else m
        for m in site.messages(journal.events())
    ]  # fmt: skip
    site.fill(journal, messages)
    status, found, summary = verified(site, capsys)
    assert status == 0
    assert [(row["kind"], row["trajectory_id"]) for row in found] == [("not compared", A)]
    assert "version 0 of the fold" in found[0]["why"]
    assert summary["compared"] == 3


# -- ranges ----------------------------------------------------------------------------------


def test_a_trajectory_that_began_before_the_range_is_listed_and_not_compared(site, journal, capsys):
    site.fill(journal, site.messages(journal.events()))
    status, found, summary = verified(site, capsys, "--partition", "1", "--from", "2")
    assert (status, kinds(found)) == (0, {("not compared", A)})
    assert summary["compared"] == 2
    assert site.run("replay", "--json", "--partition", "1", "--from", "2") == 0
    assert {row["key"] for row in rows(capsys)} == {B, C}


def test_a_range_that_ends_early_compares_up_to_there(site, journal, capsys):
    site.fill(journal, site.messages(journal.events()))
    for stop in (1, 4, 7):
        status, found, _ = verified(site, capsys, "--partition", "1", "--to", str(stop))
        assert (status, found) == (0, []), stop


def test_records_of_one_millisecond_may_be_parted_by_a_range(site, capsys):
    journal = Journal()
    for owner in (A, B):
        for span in run_of(owner, "ticket.purge"):
            journal.add(span, after=0)
    site.fill(journal, site.messages(journal.events()))
    for cut in (1, 4, 6):
        for args in (("--from", str(cut)), ("--to", str(cut))):
            status, found, _ = verified(site, capsys, "--partition", "1", *args)
            assert status == 0, (args, found)


def test_a_range_of_time(site, journal, capsys):
    site.fill(journal, site.messages(journal.events()))
    first = journal.records[1][5].timestamp  # B's first record
    args = ("--from", time_text(first), "--to", time_text(first + 3000))
    assert site.run("replay", "--json", *args) == 0
    found = rows(capsys)
    assert {row["key"] for row in found} == {B}
    assert max(row["time"] for row in found) < time_text(first + 3000)
    assert verified(site, capsys, *args)[0] == 0


def test_before_retention_is_not_compared_and_afterwards_is(site, journal, capsys, monkeypatch):
    journal.now += HOUR
    journal.add_run(trajectory(5))
    messages = site.messages(journal.events())
    site.fill(journal, [m for m in messages if m is not messages[-1]])

    async def cut(settings, places):
        found = await extents(settings, places)
        return {place: Extent(2 if place.partition else 0, e.end) for place, e in found.items()}

    monkeypatch.setattr("streams.range.extents", cut)
    status, found, _ = verified(site, capsys)
    assert kinds(found) == {("not compared", A), ("missing", trajectory(5))}
    assert status == 1


def test_a_journal_that_was_made_anew_is_compared_from_its_own_beginning(site, journal, capsys):
    old = Journal()
    old.now -= HOUR
    old.add_run(trajectory(7), "ticket.purge")
    site.fill(journal, site.messages([*old.events(), *journal.events()]))
    status, found, summary = verified(site, capsys)
    assert (status, found) == (0, [])
    assert summary["older"] == len(old.events())


def test_events_that_their_topic_no_longer_keeps_are_not_missed(site, journal, capsys, monkeypatch):
    messages = site.messages(journal.events())
    labels = [m for m in messages if m.topic == site.plan.labels.name and m.partition == 1]
    site.fill(journal, [m for m in messages if m not in labels[:2]])

    async def cut(settings, places):
        found = await extents(settings, places)
        return {
            p: Extent(p.topic.endswith(".labels"), e.end) if p.partition else e
            for p, e in found.items()
        }

    assert verified(site, capsys)[2]["missing"] == 2
    monkeypatch.setattr("streams.verify.extents", cut)
    _, _, summary = verified(site, capsys)
    assert (summary["unkept"], summary["missing"]) == (2, 0)


def test_what_the_workers_have_not_committed_may_not_be_published_yet(site, journal, capsys):
    messages = site.messages(journal.events())
    site.fill(journal, [m for m in messages if m.key != B.encode()])
    assert verified(site, capsys)[2]["missing"]
    site.commit({0: 5, 1: 5})  # B's first record
    status, found, summary = verified(site, capsys)
    assert (status, found) == (0, [])
    assert summary["late"] == len([m for m in messages if m.key == B.encode()])


# -- what cannot be done ---------------------------------------------------------------------


def test_a_policy_set_that_is_not_there_is_one_line(site, journal, capsys):
    site.fill(journal, sets=False)
    assert site.run("replay") == 2
    told = capsys.readouterr().err
    assert journal.policy_set.digest in told
    assert told.count("\n") == 1


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (["--from", "yesterday"], "neither an offset nor a time"),
        (["--from", "3"], "add --partition"),
        (["--partition", "2"], "allowed are 0 to 1"),
        (["--partition", "1", "--from", "5", "--to", "3"], "ends before it begins"),
        (["--trajectory", "abc"], "32 lower-case hex"),
        (["--trajectory", A, "--partition", "0"], "is in partition 1"),
        (["--trajectory", trajectory(77)], "no arrival of trajectory"),
    ],
)
def test_mistakes_are_one_line(site, journal, capsys, args, words):
    site.fill(journal)
    assert site.run("replay", *args) == 2
    told = capsys.readouterr().err
    assert words in told
    assert told.count("\n") == 1


@pytest.mark.parametrize(
    ("full", "status", "told"),
    [(False, 141, []), (True, 2, ["agenttrust: No space left on device"])],
)
@pytest.mark.parametrize("args", [["--json"], ["--verify"], ["--verify", "--json"], []])
def test_output_that_is_refused_is_neither_kafkas_fault_nor_verified(
    site, journal, capsys, monkeypatch, full, status, told, args
):
    site.fill(journal)
    reader, writer = os.pipe()
    os.close(reader)
    out = open("/dev/full" if full else writer, "w")  # noqa: SIM115, PTH123
    monkeypatch.setattr(sys, "stdout", out)
    assert site.run("replay", *args) == status
    assert capsys.readouterr().err.splitlines()[-1:] == told
    monkeypatch.undo()
    with contextlib.suppress(OSError):
        out.close()
    if full:
        os.close(writer)


def test_missing_topics_are_told(broker, monkeypatch, capsys):  # noqa: F811
    monkeypatch.setenv("AGENTTRUST_KAFKA_BOOTSTRAP", broker)
    monkeypatch.setenv("AGENTTRUST_TOPIC_PREFIX", "nobody")
    assert cli.run(["replay"]) == 2
    assert "run: agenttrust topics create" in capsys.readouterr().err


# -- with workers ----------------------------------------------------------------------------


@pytest.mark.slow
def test_what_real_workers_published_is_verified(
    broker,  # noqa: F811
    redis_url,  # noqa: F811
    tmp_path,
    monkeypatch,
    capsys,
):
    contracts = tmp_path / "contracts"
    contracts.mkdir()
    (contracts / "desk.yaml").write_text(CONTRACT)
    chosen = settings(broker, redis_url, f"replay{time.time_ns()}", contracts=contracts)
    deployment = Deployment(chosen, tmp_path)
    deployment.create()
    for name, value in deployment.environment().items():
        monkeypatch.setenv(name, value)
    names = [f"{number:032x}" for number in range(1, 9)]
    runs = [otlp_trace(name, ["ticket.search", "ticket.purge"][: 1 + n % 2])
            for n, name in enumerate(names)]  # fmt: skip
    with deployment.worker("ingest,evaluate") as worker:
        deployment.send(value for run in runs for value in run)
        deployment.send(value for run in runs[:2] for value in run)  # again, and late

        def closed() -> bool:
            labels = (
                read(r.headers, r.value) for r in deployment.read(deployment.plan.labels.name)
            )
            return {e.trajectory for e in labels if e.body.phase == "final"} == set(names)

        wait_for(closed, "every run to be closed", 60)
        assert worker.stop() == 0
    assert cli.run(["replay", "--verify", "--json"]) == 0
    [summary] = rows(capsys)
    assert (summary["compared"], summary["open"], summary["late"]) == (len(names), 0, 0)
    assert summary["alike"] > len(names)


# -- for people ------------------------------------------------------------------------------


def test_the_text_is_as_it_was(site, journal, capsys, golden):  # noqa: F811
    _, *rest = site.messages(journal.events())
    altered = msgspec.structs.replace(rest[0], value=rest[0].value.replace(b"desk", b"dusk"))
    foreign = Journal()
    foreign.now += MINUTE
    foreign.add_run(trajectory(4))
    site.fill(journal, [altered, *rest[1:], *site.messages(foreign.events())])
    assert site.run("replay") == 0
    golden("replay.txt", capsys.readouterr().out)
    assert site.run("replay", "--verify") == 1
    text = capsys.readouterr().out.replace(site.settings.topic_prefix, "site")
    golden("replay-verify.txt", re.sub(r"id [0-9a-f]{32}", "id …", text))


def test_a_terminal_has_a_bar_and_a_pipe_has_none(site, journal, capsys, monkeypatch):
    site.fill(journal, site.messages(journal.events()))
    assert site.run("replay", "--verify") == 0
    assert capsys.readouterr().err == ""
    monkeypatch.setenv("TTY_COMPATIBLE", "1")
    assert site.run("replay", "--verify") == 0
    assert "100%" in capsys.readouterr().err
