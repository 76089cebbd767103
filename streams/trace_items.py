"""What `--golden-contracts` collects: trajectories of OTLP files and of exports, as tests.

The OTLP files of a folder are one input, since a trajectory's spans are spread over requests. Its
tests belong to the file in which it is first seen.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, Final

import pytest

from monitor.contract import Contract, PolicySet, load_contracts
from monitor.errors import InputError, plain
from monitor.explain import in_context, paths
from monitor.exported import Exported, binding, judge, load_exported
from monitor.label import Label, Violation
from monitor.trajectory import has_rule
from streams import inspect
from streams.errors import UserError
from streams.otlp_files import OtlpFile, read_files

_SETS: Final = pytest.StashKey[PolicySet]()
_FOLDERS: Final = pytest.StashKey[dict[Path, dict[Path, list[inspect.Judged]]]]()


def configure(config: pytest.Config, folder: Path) -> None:
    """Loads the contracts. Raises UsageError."""
    try:
        contracts = load_contracts(folder)
    except InputError as error:
        raise pytest.UsageError(str(error)) from None
    if not contracts:
        raise pytest.UsageError(f"--golden-contracts {plain(folder)}: holds no contract")
    config.stash[_SETS] = PolicySet(contracts)
    config.stash[_FOLDERS] = {}


def collect(path: Path, parent: pytest.Collector) -> pytest.Collector | None:
    """A collector for a file of traces or exports; None for any other."""
    if ".golden." in path.name:
        return None
    if path.suffix == ".jsonl":
        return ExportedFile.from_parent(parent, path=path)
    return TracesFile.from_parent(parent, path=path) if _is_otlp(path) else None


def _is_otlp(path: Path) -> bool:
    """Other JSON files of a project are nothing to us."""
    if path.suffix != ".json":
        return path.suffix == ".pb"
    with path.open("rb") as file:
        return b'"resourceSpans"' in file.read(4096)


class TracesFile(pytest.File):
    """OTLP traces. Holds the trajectories of its folder that begin in this file."""

    def collect(self) -> Iterable[pytest.Item]:
        folders = self.config.stash[_FOLDERS]
        folder = self.path.parent
        if folder not in folders:
            folders[folder] = {}  # told once, not for each of the folder's files
            try:
                folders[folder] = _judge_folder(folder, self.config.stash[_SETS])
            except UserError as error:
                raise self.CollectError(str(error)) from None
        for judged in folders[folder].get(self.path, ()):
            for label in judged.labels:
                yield TraceTest.make(self, judged.trajectory, label, partial(_tell, judged, label))


def _judge_folder(folder: Path, policy_set: PolicySet) -> dict[Path, list[inspect.Judged]]:
    """The trajectories of a folder's own OTLP files, by the file that begins them."""
    names = sorted(path for path in folder.iterdir() if _is_otlp(path))
    files: list[OtlpFile] = read_files(names)
    found = asyncio.run(inspect.judge(files, policy_set))
    begins: dict[str, Path] = {}
    for file in files:
        for trajectory in file.trajectories():
            begins.setdefault(trajectory, file.path)
    by_file: dict[Path, list[inspect.Judged]] = {}
    for judged in found.trajectories:
        by_file.setdefault(begins.get(judged.trajectory, names[0]), []).append(judged)
    return by_file


def _tell(judged: inspect.Judged, label: Label, contract: Contract | None) -> Iterator[str]:
    """Violations, then the path, as for a golden case."""
    ours = [violation for violation in judged.violations if violation.contract == label.contract]
    for violation in ours:
        yield from _violation(violation)
    if contract is not None and any(violation.layer == "trajectory" for violation in ours):
        yield ""
        observed = [call.tool for call in judged.prefix.calls if call.executed]
        yield from (f"  {line}" for line in paths(contract, observed))


def _violation(violation: Violation) -> Iterator[str]:
    yield f"  {violation.code} ({violation.severity}): {plain(violation.message)}"
    if violation.step is not None:
        yield f"    step {violation.step}, call {plain(violation.call_id or '–')}"
    if violation.evidence is not None and violation.layer != "trajectory":
        yield f"    {plain(violation.evidence)}"


class ExportedFile(pytest.File):
    """Exported trajectories, one a line."""

    def collect(self) -> Iterable[pytest.Item]:
        contracts = self.config.stash[_SETS].contracts
        try:
            for number, trajectory in load_exported(self.path):
                applying: list[Contract | None] = [
                    contract for contract in contracts if binding(contract, trajectory) == "yes"
                ]
                for contract in applying or [None]:
                    yield ExportedTest.from_parent(
                        self,
                        name=_name(trajectory.trajectory_id, contract),
                        line=number,
                        trajectory=trajectory,
                        contract=contract,
                    )
        except InputError as error:
            raise self.CollectError(str(error)) from None


def _name(trajectory: str, contract: Contract | None) -> str:
    told = "no contract" if contract is None else f"{contract.contract} {contract.version}"
    return plain(f"{trajectory}[{told}]")


class NotTrusted(Exception):  # noqa: N818 - what a failing test is told by
    """A trajectory is not what its contract expects."""


class _Test(pytest.Item):
    def repr_failure(
        self, excinfo: pytest.ExceptionInfo[BaseException], style: Any = None
    ) -> str | Any:
        if isinstance(excinfo.value, NotTrusted):
            return str(excinfo.value)
        return super().repr_failure(excinfo, style)

    def reportinfo(self) -> tuple[Path, int | None, str]:
        return self.path, None, f"trajectory {self.name}"


class TraceTest(_Test):
    """A label of a trajectory."""

    def __init__(
        self, *, label: Label, tell: Callable[[Contract | None], Iterator[str]], **more: Any
    ) -> None:
        super().__init__(**more)
        self._label = label
        self._tell = tell

    @classmethod
    def make(
        cls,
        parent: TracesFile,
        trajectory: str,
        label: Label,
        tell: Callable[[Contract | None], Iterator[str]],
    ) -> TraceTest:
        contract = _contract_of(parent.config.stash[_SETS], label)
        return cls.from_parent(parent, name=_name(trajectory, contract), label=label, tell=tell)

    def runtest(self) -> None:
        label = self._label
        contract = _contract_of(self.config.stash[_SETS], label)
        if contract is None and "no_contract" in label.coverage.reasons:
            pytest.skip("no contract is for this trajectory")
        if label.verdict != "trusted":
            reasons = ", ".join(label.coverage.reasons)
            head = f"{plain(label.trajectory_id)} is {label.verdict}"
            raise NotTrusted(
                "\n".join([head + (f" ({reasons})" if reasons else ""), *self._tell(contract)])
            )


def _contract_of(policy_set: PolicySet, label: Label) -> Contract | None:
    if label.contract is None:
        return None
    return next(c for c in policy_set.contracts if c.digest == label.contract.digest)


class ExportedTest(_Test):
    """An exported trajectory under one contract."""

    def __init__(
        self, *, line: int, trajectory: Exported, contract: Contract | None, **more: Any
    ) -> None:
        super().__init__(**more)
        self._line = line
        self._trajectory = trajectory
        self._contract = contract

    def runtest(self) -> None:
        if self._contract is None:
            pytest.skip("no contract is for this trajectory")
        found = judge(self._contract, self._trajectory)
        if found.verdict == "trusted":
            return
        reasons = f" ({', '.join(found.reasons)})" if found.reasons else ""
        lines = [f"{plain(self._trajectory.trajectory_id)} is {found.verdict}{reasons}"]
        for finding in found.findings:
            lines.append(f"  {finding.code} ({finding.severity}): {plain(finding.message)}")
            if finding.layer == "grounding" and found.answer and finding.evidence is not None:
                lines.append(f"    {in_context(found.answer, finding.subject)}")
            elif finding.evidence is not None and finding.layer != "trajectory":
                lines.append(f"    {plain(finding.evidence)}")
        if has_rule(self._contract) and any(f.layer == "trajectory" for f in found.findings):
            lines += ["", *(f"  {line}" for line in paths(self._contract, found.observed))]
        raise NotTrusted("\n".join(lines))

    def reportinfo(self) -> tuple[Path, int | None, str]:
        return self.path, self._line - 1, f"trajectory {self.name}"
