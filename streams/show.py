"""`agenttrust show`: the story of one trajectory, from the journal and the topics.

Its steps as a timeline, and each revision of its labels with the arrival that caused it. Nearly
everything comes from strangers' spans, so `plain` escapes what a terminal would obey.
"""

from __future__ import annotations

import asyncio
import json
from typing import Any, Final

import click
import msgspec
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table
from rich.text import Text

from monitor.errors import plain
from monitor.label import Event, Label, Violation
from monitor.model import Arrival, Close, Lost, Observed, Pin, Reading, Step
from streams.errors import UserError
from streams.events import time_text
from streams.history import History, Moment, find, history
from streams.patience import words
from streams.refold import check_topics
from streams.settings import Settings, load
from streams.topic_log import FAILURES

_EXCERPT: Final = 120
"""Characters shown of what was said, asked or returned; `--json` gives all."""
_SECOND: Final = 1_000_000_000


def cause(arrival: Arrival | None) -> str:
    """What arrived, in words."""
    match arrival:
        case Observed(span):
            return f"{span.kind} span {plain(span.name, 80)} {plain(span.span_id, 16)}"
        case Close(_, reason, after):
            return f"close: {reason}, nothing after offset {after}"
        case Lost(_, reason, source):
            return f"lost arrival: {plain(reason, 80)} at {plain(source, 120)}"
        case Reading(_, id_, step):
            return f"reading {plain(id_, 32)} of {plain(step, 80)}"
        case Pin(_, policy_set):
            return f"pin to policy set {plain(policy_set, 32)}"
        case None:
            return "the journal holds no cause"
    return f"arrival of an unknown kind: {plain(arrival.name, 80)}"


# -- for programs ----------------------------------------------------------------------------


def document(told: History) -> dict[str, Any]:
    """The object of `--json`."""
    return {
        "trajectory_id": told.trajectory,
        "partition": told.partition,
        "arrivals": told.arrivals,
        "labels": [msgspec.to_builtins(label) for label in told.labels],
        "violations": [msgspec.to_builtins(violation) for violation in told.violations],
        "steps": [_step(step) for step in told.steps],
        "revisions": [_moment(moment, told) for moment in told.moments],
    }


def _step(step: Step) -> dict[str, Any]:
    fields = {name: getattr(step, name) for name in step.__struct_fields__}
    try:
        json.dumps(fields)
    except RecursionError:  # nested as deeply as it can be read, and too deeply to be written
        fields |= {"arguments": None, "result": None}
    return fields


def _moment(moment: Moment, told: History) -> dict[str, Any]:
    arrival = moment.arrival
    kind = None if arrival is None else arrival.__struct_config__.tag or "unknown"
    return {
        "offset": moment.offset,
        "time": time_text(moment.time),
        "cause": kind,
        "span_id": arrival.span.span_id if isinstance(arrival, Observed) else None,
        "told": cause(arrival),
        "events": [
            {
                "id": event.id,
                "type": event.type,
                "published": event.id not in told.unpublished,
                "value": msgspec.to_builtins(event.body),
            }
            for event in moment.events
        ],
    }


# -- for people ------------------------------------------------------------------------------


def show_text(told: History, console: Console) -> None:
    """Header, steps, revisions."""
    for part in (_header(told), _steps(told)):
        console.print(part)
    for moment in told.moments:
        where = "" if moment.offset is None else f"  offset {moment.offset}"
        console.print(Text(f"{time_text(moment.time)}{where}  {cause(moment.arrival)}", "bold"))
        for event in moment.events:
            console.print(_event(event, published=event.id not in told.unpublished))
    if not told.arrivals:
        console.print(Text("The journal no longer holds this trajectory.", "yellow"))
    if told.unpublished:
        command = f"agenttrust replay --verify --trajectory {told.trajectory}"
        console.print(Text(f"Not all of it is as published; see: {command}", "yellow"))


def _header(told: History) -> Text:
    rows: list[tuple[str, str | Text]] = [
        ("trajectory", told.trajectory),
        ("journal", f"partition {told.partition}, {told.arrivals} arrivals"),
    ]
    labels = told.labels
    if labels:
        newest = labels[-1]
        found = (
            ("agent", newest.agent),
            ("service", newest.service),
            ("conversation", newest.conversation_id),
        )
        rows += [(name, plain(value, 200)) for name, value in found if value]
    else:
        rows.append(("label", "none: no agent has shown itself, or no contract is known to apply"))
    for label in labels:
        contract = label.contract
        named = "no contract" if contract is None else f"{contract.name} v{contract.version}"
        rows.append((plain(named, 60), _verdict(label)))
    width = max(len(name) for name, _ in rows)
    lines = [Text(f"{name:{width}}  ").append_text(Text.assemble(value)) for name, value in rows]
    return Text("\n").join(lines)


def _verdict(label: Label) -> Text:
    text = Text(plain(label.verdict), "bold red" if label.verdict == "violated" else "bold")
    text.append(f" {label.phase}, revision {label.revision}", "default")
    if label.closed is not None:
        text.append(f", closed: {label.closed}", "default")
    layers = (f"{name} {state}" for name, state in label.layers.items())
    text.append(f", {', '.join(layers)}", "default")
    for told, values in (("pending", label.pending), ("coverage", label.coverage.reasons)):
        if values:
            text.append(f"; {told}: {', '.join(plain(value, 60) for value in values)}", "default")
    return text


def _steps(told: History) -> Table:
    table = Table(header_style="bold", box=SIMPLE_HEAD, padding=(0, 2, 0, 0))
    table.add_column("step", justify="right")
    table.add_column("time", justify="right", no_wrap=True)
    table.add_column("agent", overflow="fold", max_width=24)
    table.add_column("what", overflow="fold")
    began = min((span.start for span in told.spans.values()), default=0)
    for number, step in enumerate(told.steps):
        span = told.spans.get(step.span_id or "")
        at = None if span is None else span.end if step.type == "answer" else span.start
        time = "" if at is None else f"+{(at - began) / _SECOND:.3f} s"
        table.add_row(str(number), time, Text(plain(step.agent or "-", 60)), _what(step))
    return table


def _what(step: Step) -> Text:
    if step.type != "tool_call":
        who = "user: " if step.type == "user_request" else "answer: "
        return Text(who, "cyan").append(plain(step.text or "", _EXCERPT), "default")
    text = Text(plain(step.tool or "?", 80), "magenta")
    text.append(f" {_value(step.arguments)}", "default")
    if step.requested_only:
        return text.append(" (requested; nothing tells that it ran)", "yellow")
    if step.error is not None:
        return text.append(f" failed: {plain(step.error, _EXCERPT)}", "red")
    return text.append(f" → {_value(step.result)}", "default")


def _value(value: Any) -> str:
    if value is None:
        return "(not shown)"
    return plain(value if isinstance(value, str) else msgspec.json.encode(value).decode(), _EXCERPT)


def _event(event: Event, *, published: bool) -> Text:
    body = event.body
    if isinstance(body, Violation):
        style = "red" if body.state == "raised" else "green"
        text = Text("  ").append(f"{body.state} {plain(body.code, 80)}", style)
        where = "" if body.step is None else f" at step {body.step}"
        text.append(f"{where}: {plain(body.message, 300)}")
        if body.evidence:
            text.append(f" [{plain(body.evidence, 200)}]", "dim")
    else:
        text = Text("  label ").append_text(_verdict(body))
    contract = body.contract
    if contract is not None:
        text.append(f" ({plain(contract.name, 60)} v{contract.version})", "dim")
    return text if published else text.append(" NOT PUBLISHED", "bold yellow")


async def _show(settings: Settings, start: str) -> History:
    await check_topics(settings)
    trajectory = await find(settings, start)
    return await history(
        settings, trajectory, lambda text: click.echo(f"agenttrust: {plain(text)}", err=True)
    )


@click.command()
@click.argument("trajectory")
@click.option("--json", "as_json", is_flag=True, help="One JSON object.")
def show(trajectory: str, *, as_json: bool) -> None:
    """Tell the story of one trajectory: its steps, and what caused each revision.

    TRAJECTORY is its id, or the first 8 hex digits or more.
    """
    settings = load()
    try:
        told = asyncio.run(_show(settings, trajectory))
    except FAILURES as error:
        raise UserError(f"Kafka at {settings.kafka_bootstrap}: {words(error)}") from None
    if as_json:
        click.echo(json.dumps(document(told), separators=(",", ":")))
    else:
        show_text(told, Console(highlight=False))
