"""Golden cases as tests of pytest: one test a case, or a case and mode.

Collected are `*.golden.yaml`, `*.golden.yml` and `*.golden.json`, and what the setting
`golden_paths` names (files, or folders of YAML and JSON files). Settings, in pytest's own file:

    golden_paths = tests/golden          # further files and folders
    golden_modes = FULL POLICY_ONLY      # default: FULL
    golden_strict = true                 # a result key that names no call is an error
    golden_max_bytes = 8388608           # largest file

`--golden-mode` overrides golden_modes. pytest loads this module at every start, so that it imports
nothing of ours before there is a golden case.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Final, cast

import pytest

if TYPE_CHECKING:
    from monitor.golden_items import GoldenFile

SUFFIXES: Final = (".yaml", ".yml", ".json")
_NAMED: Final = tuple(f".golden{suffix}" for suffix in SUFFIXES)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.getgroup("golden cases").addoption(
        "--golden-mode",
        action="append",
        metavar="NAME",
        help="mode to judge golden cases in (FULL, POLICY_ONLY, … or all); may be repeated",
    )
    parser.addini("golden_paths", "further files and folders of golden cases", "paths", [])
    parser.addini("golden_modes", "modes to judge golden cases in", "args", ["FULL"])
    parser.addini("golden_strict", "warnings about golden cases are errors", "bool", default=False)
    parser.addini("golden_max_bytes", "largest file of golden cases", "string", default="8388608")


def pytest_configure(config: pytest.Config) -> None:
    """Where no path is given on the command line, the configured ones are collected too."""
    config.addinivalue_line("markers", "golden: a golden case")
    config.addinivalue_line("markers", "critical: a golden case that must not be missed")
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
        from monitor.golden_items import GoldenFile  # noqa: PLC0415 - see the module's docstring

        return GoldenFile.from_parent(parent, path=file_path)
    return None


def _paths(config: pytest.Config) -> list[Path]:
    return cast("list[Path]", config.getini("golden_paths"))
