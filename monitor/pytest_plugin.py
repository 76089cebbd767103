"""Golden cases as tests of pytest: one test a case, or a case and mode.

Collected are `*.golden.yaml`, `*.golden.yml` and `*.golden.json`, and what the setting
`golden_paths` names (files, or folders of YAML and JSON files). Settings, in pytest's own file:

    golden_paths = tests/golden          # further files and folders
    golden_modes = FULL POLICY_ONLY      # default: FULL
    golden_strict = true                 # a result key that names no call is an error
    golden_max_bytes = 8388608           # largest file

`--golden-mode` overrides golden_modes.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any, Final, cast

import pytest

from monitor.errors import InputError, plain
from monitor.explain import Judged, explain
from monitor.golden import MODES, SIZE_LIMIT, SUFFIXES, GoldenCase, Mode, evaluate, load_cases

_NAMED: Final = tuple(f".golden{suffix}" for suffix in SUFFIXES)


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("golden cases")
    group.addoption(
        "--golden-mode",
        action="append",
        metavar="NAME",
        help=f"mode to judge golden cases in, may be repeated: {', '.join(MODES)} or all",
    )
    parser.addini("golden_paths", "further files and folders of golden cases", "paths", [])
    parser.addini("golden_modes", "modes to judge golden cases in", "args", ["FULL"])
    parser.addini("golden_strict", "warnings about golden cases are errors", "bool", default=False)
    parser.addini(
        "golden_max_bytes", "largest file of golden cases", "string", default=str(SIZE_LIMIT)
    )


def pytest_configure(config: pytest.Config) -> None:
    """Where no path is given on the command line, the configured ones are collected too."""
    config.addinivalue_line("markers", "golden: a golden case")
    config.addinivalue_line("markers", "critical: a golden case that must not be missed")
    _limit(config)
    if config.args_source is not pytest.Config.ArgsSource.ARGS:
        given = [Path(config.invocation_params.dir, arg) for arg in config.args]
        for path in _paths(config):
            if path.exists() and not any(path.is_relative_to(parent) for parent in given):
                config.args.append(str(path))


def pytest_collect_file(file_path: Path, parent: pytest.Collector) -> GoldenFile | None:
    if file_path.name.endswith(_NAMED) or (
        file_path.suffix in SUFFIXES
        and any(file_path.is_relative_to(path) for path in _paths(parent.config))
    ):
        return GoldenFile.from_parent(parent, path=file_path)
    return None


def _paths(config: pytest.Config) -> list[Path]:
    return cast("list[Path]", config.getini("golden_paths"))


def _limit(config: pytest.Config) -> int:
    text = config.getini("golden_max_bytes")
    if not text.isdecimal() or int(text) < 1:
        raise pytest.UsageError(f"golden_max_bytes: {plain(text)}; allowed: a number of bytes")
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
            raise pytest.UsageError(
                f"golden mode {plain(name)}; allowed: {', '.join(MODES)} or all"
            )
    return list(dict.fromkeys(modes))


class GoldenFile(pytest.File):
    """A file of golden cases."""

    def collect(self) -> Iterable[pytest.Item]:
        try:
            cases = load_cases(
                self.path,
                strict=bool(self.config.getini("golden_strict")),
                limit=_limit(self.config),
            )
        except InputError as error:
            raise self.CollectError(str(error)) from None
        modes = _modes(self.config)
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
        if isinstance(excinfo.value, UnexpectedOutcome):
            return str(excinfo.value)
        return super().repr_failure(excinfo, style)

    def reportinfo(self) -> tuple[Path, int | None, str]:
        line = self.case.place.rpartition(":")[2]
        return self.path, int(line) - 1 if line.isdecimal() else None, f"golden case {self.name}"
