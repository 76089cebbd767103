"""Captured traces as tests of pytest: `pytest --golden-contracts DIR captures/`.

Each trajectory of OTLP files (`.pb`, `.json`) and of exports (`.jsonl`, the lines of `agenttrust
inspect --json`) is a test for each contract that applies: it passes when the verdict is `trusted`,
fails when it is violated or cannot be assessed, and is skipped when no contract is for it.

pytest loads this module at every start, so that it imports nothing of ours before the option is
given.
"""

from __future__ import annotations

from pathlib import Path

import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.getgroup("golden cases").addoption(
        "--golden-contracts",
        metavar="DIR",
        help="judge captured traces (OTLP files, exported trajectories) by these contracts",
    )


def pytest_configure(config: pytest.Config) -> None:
    folder = config.getoption("golden_contracts")
    if folder is not None:
        from streams import trace_items  # noqa: PLC0415 - see the module's docstring

        trace_items.configure(config, Path(config.invocation_params.dir, folder))


def pytest_collect_file(file_path: Path, parent: pytest.Collector) -> pytest.Collector | None:
    if parent.config.getoption("golden_contracts") is None:
        return None
    from streams import trace_items  # noqa: PLC0415

    return trace_items.collect(file_path, parent)
