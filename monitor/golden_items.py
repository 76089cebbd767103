"""What the pytest plugin collects: files of golden cases, and a test for each case and mode."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any, cast

import pytest

from monitor.errors import InputError, plain
from monitor.explain import Judged, explain
from monitor.golden import MODES, GoldenCase, Mode, evaluate, load_cases


def _limit(config: pytest.Config) -> int:
    text = config.getini("golden_max_bytes")
    if not text.isdecimal() or int(text) < 1:
        raise InputError("golden_max_bytes", text, "a number of bytes")
    return int(text)


def _modes(config: pytest.Config) -> list[Mode]:
    given = config.getoption("golden_mode") or config.getini("golden_modes")
    modes: list[Mode] = []
    for name in given:
        if name.lower() == "all":
            modes += MODES
        elif name.upper() in MODES:
            modes.append(cast("Mode", name.upper()))
        else:
            raise InputError("golden mode", name, f"{', '.join(MODES)} or all")
    return list(dict.fromkeys(modes))


class GoldenFile(pytest.File):
    """A file of golden cases."""

    def collect(self) -> Iterable[pytest.Item]:
        try:
            modes = _modes(self.config)
            cases = load_cases(
                self.path,
                strict=bool(self.config.getini("golden_strict")),
                limit=_limit(self.config),
            )
        except InputError as error:
            raise self.CollectError(str(error)) from None
        for case in cases:
            for mode in modes:
                name = case.case_id if len(modes) == 1 else f"{case.case_id}[{mode}]"
                yield GoldenItem.from_parent(self, name=plain(name), case=case, mode=mode)


class UnexpectedOutcome(Exception):  # noqa: N818 - what a failing test is told by
    """A case came out other than expected."""


class GoldenItem(pytest.Item):
    """A case in a mode."""

    def __init__(self, *, case: GoldenCase, mode: Mode, **more: Any) -> None:
        super().__init__(**more)
        self.case = case
        self.mode = mode
        self.add_marker("golden")
        if case.critical:
            self.add_marker("critical")

    def runtest(self) -> None:
        for key in self.case.stray_results:
            self.warn(pytest.PytestWarning(f"result {plain(key)} names no call"))
        judged = Judged(self.case, self.mode, evaluate(self.case, self.mode))
        if not judged.as_expected:
            raise UnexpectedOutcome(explain(judged))

    def repr_failure(
        self, excinfo: pytest.ExceptionInfo[BaseException], style: Any = None
    ) -> str | Any:
        if isinstance(excinfo.value, UnexpectedOutcome | pytest.PytestWarning):
            return str(excinfo.value)
        return super().repr_failure(excinfo, style)

    def reportinfo(self) -> tuple[Path, int | None, str]:
        line = self.case.place.rpartition(":")[2]
        return self.path, int(line) - 1 if line.isdecimal() else None, f"golden case {self.name}"
