"""The table that `watch` and `dev` show: labels by trajectory and contract, violations below.

Everything in an event may come from a stranger's span. `plain` escapes what a terminal would
obey, and `Text` keeps rich from reading markup.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Final

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from monitor.errors import plain
from monitor.label import Event, Label, Violation

_ROWS: Final = 1000
"""Rows kept; the oldest label leaves first."""
_LINES: Final = 6
"""Violations shown below the table."""
_STYLES: Final[Mapping[str, str]] = {
    "trusted": "green",
    "violated": "bold red",
    "unassessed": "yellow",
    "open": "cyan",
}

Key = tuple[str, str]


class Board:
    """The newest label of each trajectory and contract. `names` says what a trajectory is."""

    def __init__(self, names: Mapping[str, str] | None = None) -> None:
        self.labels: OrderedDict[Key, Label] = OrderedDict()
        self._names = names or {}
        self._violations: OrderedDict[str, Event] = OrderedDict()
        self._lines: deque[Text] = deque(maxlen=_LINES)

    def add(self, event: Event) -> bool:
        """Takes an event in; False when it tells nothing new (a repeat, or an older revision)."""
        body = event.body
        if isinstance(body, Label):
            key = (body.trajectory_id, _contract(body))
            known = self.labels.get(key)
            if known is not None and known.revision >= body.revision:
                return False
            self.labels[key] = body
            if len(self.labels) > _ROWS:
                self.labels.popitem(last=False)
            return True
        if event.id in self._violations:
            return False
        self._violations[event.id] = event
        if len(self._violations) > _ROWS:
            self._violations.popitem(last=False)
        self._lines.append(line(event))
        return True

    def finals(self) -> set[str]:
        """Trajectories of which every label is final."""
        waiting = {t for (t, _), label in self.labels.items() if label.phase != "final"}
        return {t for t, _ in self.labels} - waiting

    def render(self, rows: int | None = None) -> RenderableType:
        """The table with the `rows` newest trajectories."""
        several = len({contract for _, contract in self.labels}) > 1
        table = Table(header_style="bold", expand=True, pad_edge=False)
        table.add_column("trajectory", no_wrap=True, width=10)
        if self._names:
            table.add_column("run", no_wrap=True, overflow="ellipsis")
        table.add_column("agent", no_wrap=True, overflow="ellipsis")
        if several:
            table.add_column("contract", no_wrap=True, overflow="ellipsis")
        table.add_column("steps", justify="right", width=5)
        table.add_column("verdict", no_wrap=True, width=10)
        table.add_column("phase", no_wrap=True, width=11)
        table.add_column("codes", overflow="fold", ratio=1)
        shown = list(self.labels.items())
        for (trajectory, contract), label in shown if rows is None else shown[-rows:]:
            cells = [Text(plain(trajectory[:8], 8))]
            if self._names:
                cells.append(Text(plain(self._names.get(trajectory, ""), 60)))
            cells.append(Text(plain(label.agent or label.service or "-", 40)))
            if several:
                cells.append(Text(plain(contract, 40)))
            table.add_row(
                *cells,
                str(label.steps),
                Text(plain(label.verdict), style=_STYLES.get(label.verdict, "")),
                plain(label.phase),
                _codes(label),
            )
        return Group(table, *self._lines) if self._lines else table


def _contract(label: Label) -> str:
    return f"{label.contract.name} v{label.contract.version}" if label.contract else "-"


def _codes(label: Label) -> Text:
    """Violations, then why something could not be judged."""
    text = Text(plain(", ".join(label.violations), 300))
    if label.verdict == "unassessed" or label.coverage.reasons:
        reasons = plain(", ".join(label.coverage.reasons), 300)
        text.append(f" ({reasons})" if text else f"({reasons})", style="dim")
    return text


def line(event: Event) -> Text:
    """An event on one line, for logs and below the table."""
    body = event.body
    time = datetime.fromtimestamp(min(max(event.time, 0), 253e12) / 1000, UTC).strftime("%H:%M:%S")
    head = f"{time} {plain(body.trajectory_id[:8], 8)} "
    if isinstance(body, Violation):
        where = plain(f"{body.agent or body.service or '-'}", 40)
        text = Text(f"{head}{where} ", overflow="ellipsis", no_wrap=True)
        style = "red" if body.state == "raised" else "green"
        text.append(f"{plain(body.state)} {plain(body.code, 80)}", style=style)
        return text.append(f": {plain(body.message, 300)}")
    text = Text(f"{head}{plain(body.agent or body.service or '-', 40)} ")
    text.append(plain(body.verdict), style=_STYLES.get(body.verdict, ""))
    text.append(f" {plain(body.phase)}, {body.steps} steps, revision {body.revision} ")
    return text.append_text(_codes(body))
