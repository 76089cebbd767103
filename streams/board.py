"""The table that `watch` and `dev` show: labels by trajectory and contract, violations below.

Everything in an event may come from a stranger's span. `plain` escapes what a terminal would
obey, and `Text` keeps rich from reading markup.
"""

from __future__ import annotations

from collections import Counter, OrderedDict, deque
from collections.abc import Mapping
from datetime import UTC, datetime
from itertools import accumulate
from typing import Final

from rich.box import SIMPLE_HEAD
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from monitor.errors import plain
from monitor.label import Event, Label, Violation

_ROWS: Final = 1000
"""Rows kept; the oldest label leaves first."""
_LINES: Final = 6
"""Violations shown below the table."""
_CODES: Final = 10
"""Codes and coverage reasons shown of one label."""
_WIDE: Final = 110
"""Columns of a terminal that has room for the names of the runs;"""
_NARROW: Final = 100
"""below that, none for more than a sign of the phase."""
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
        self.names = names or {}
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

    def render(self, rows: int, width: int) -> RenderableType:
        """The newest labels, as many as fit into `rows` lines, and the newest violations, for
        `width` columns."""
        return Group(self.table(rows, width), *self._lines)

    def table(self, rows: int | None = None, width: int = 120) -> Table:
        """The newest labels that fit into `rows` lines, all by default."""
        shown = list(self.labels.items())
        if rows is not None:
            # A label takes a line for each of its codes; what does not fit is the oldest.
            taken = accumulate(max(1, _lines(label)) for _, label in reversed(shown))
            fitting = sum(1 for lines in taken if lines <= rows)
            shown = shown[-max(1, fitting) :]
        several = len({contract for _, contract in self.labels}) > 1
        named = bool(self.names) and width >= _WIDE
        narrow = width < _NARROW
        table = Table(
            header_style="bold", box=SIMPLE_HEAD, padding=(0, 1, 0, 0), show_edge=not narrow
        )
        table.add_column("trajectory", no_wrap=True, width=10)
        if named:
            table.add_column("run", no_wrap=True, overflow="ellipsis", max_width=32)
        table.add_column("agent", no_wrap=True, overflow="ellipsis", max_width=20)
        if several:
            table.add_column("contract", no_wrap=True, overflow="ellipsis")
        table.add_column("steps", justify="right", width=5)
        table.add_column("verdict", no_wrap=True, width=10)
        table.add_column("phase", no_wrap=True, width=5 if narrow else 11)
        table.add_column("codes", overflow="fold", min_width=16 if narrow else 29)
        for (trajectory, contract), label in shown:
            cells = [Text(plain(trajectory[:8], 8))]
            if named:
                cells.append(Text(plain(self.names.get(trajectory, ""), 60)))
            cells.append(Text(plain(label.agent or label.service or "-", 40)))
            if several:
                cells.append(Text(plain(contract, 40)))
            table.add_row(
                *cells,
                str(label.steps),
                Text(plain(label.verdict), style=_STYLES.get(label.verdict, "")),
                "prov." if narrow and label.phase == "provisional" else plain(label.phase),
                _codes(label, "\n"),
            )
        return table


def _contract(label: Label) -> str:
    return f"{label.contract.name} v{label.contract.version}" if label.contract else "-"


def _lines(label: Label) -> int:
    return min(_CODES, len(set(label.violations)) + len(label.coverage.reasons))


def _codes(label: Label, joint: str = ", ") -> Text:
    """Violations, then why something could not be judged."""
    counts = Counter(label.violations)
    codes = (f"{code} ×{count}" if count > 1 else code for code, count in counts.items())
    parts = [Text(plain(code, 80)) for code in codes]
    parts += [Text(plain(reason, 80), style="dim italic") for reason in label.coverage.reasons]
    return Text(joint).join(parts[:_CODES])


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
    text.append(f" {plain(body.phase)}, {body.steps} steps, revision {body.revision}")
    codes = _codes(body)
    return text.append(" ").append_text(codes) if codes else text
