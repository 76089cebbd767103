"""How well a judge agrees with people: precision, recall and Cohen's kappa, with bootstrap intervals.

The positive class is *unsupported*: the answer claims something that the evidence does not back.
Kappa: J. Cohen, A coefficient of agreement for nominal scales, 1960. Intervals: percentile
bootstrap over cases, B. Efron, 1979.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Final

import msgspec

from monitor.document import load
from monitor.errors import InputError

SAMPLES: Final = 2_000
_LIMIT: Final = 64 << 20

Pair = tuple[bool, bool]
"""Whether the judge, and whether people, found an answer unsupported."""


class Human(msgspec.Struct, frozen=True):
    """What people say of one answer: a line of the file of human labels."""

    trajectory_id: str
    supported: bool
    by: str = ""
    """Who looked at it."""
    note: str = ""
    contract: str | None = None
    """None: of every contract's label."""


class Estimate(msgspec.Struct, frozen=True):
    """A figure and the interval that 95 of 100 resamplings fall into. None: not defined."""

    value: float | None
    low: float | None
    high: float | None


class Agreement(msgspec.Struct, frozen=True):
    """`cases` both judged; `unjudged` people judged and the judge did not, which is never counted
    as agreement or error."""

    cases: int
    unjudged: int
    hits: int
    false_alarms: int
    misses: int
    agreed_supported: int
    precision: Estimate
    recall: Estimate
    kappa: Estimate


def read_humans(path: Path) -> list[Human]:
    """A JSON Lines file of human labels. Raises InputError naming the line."""
    found = []
    for number, line in enumerate(load(path, _LIMIT).splitlines(), start=1):
        if not line.strip():
            continue
        try:
            found.append(msgspec.json.decode(line, type=Human))
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise InputError(
                f"{path}:{number}",
                str(error),
                '{"trajectory_id": text, "supported": true or false}',
            ) from None
    return found


def agreement(
    judged: Mapping[tuple[str, str], bool | None],
    humans: Iterable[Human],
    *,
    seed: int,
    samples: int = SAMPLES,
) -> Agreement:
    """`judged`: by trajectory and contract, whether the judge found it unsupported; None when it
    was not assessed. The same seed gives the same intervals."""
    pairs: list[Pair] = []
    unjudged = 0
    by_trajectory: dict[str, list[tuple[str, bool | None]]] = {}
    for (trajectory, contract), found in judged.items():
        by_trajectory.setdefault(trajectory, []).append((contract, found))
    for human in humans:
        verdicts = [
            found
            for contract, found in by_trajectory.get(human.trajectory_id, [])
            if human.contract in (None, contract)
        ]
        if not verdicts or all(found is None for found in verdicts):
            unjudged += 1
        pairs += [(found, not human.supported) for found in verdicts if found is not None]
    hits, false_alarms, misses, agreed = counts(pairs)
    draws = random.Random(seed)  # noqa: S311 - resampling, no secret
    resampled = [draws.choices(pairs, k=len(pairs)) for _ in range(samples)] if pairs else []

    def estimate(figure: Callable[[Sequence[Pair]], float | None]) -> Estimate:
        values = sorted(v for v in map(figure, resampled) if v is not None)
        if not values:
            return Estimate(figure(pairs), None, None)
        low, high = (values[round(share * (len(values) - 1))] for share in (0.025, 0.975))
        return Estimate(figure(pairs), low, high)

    return Agreement(
        len(pairs), unjudged, hits, false_alarms, misses, agreed,
        estimate(precision), estimate(recall), estimate(kappa),
    )  # fmt: skip


def counts(pairs: Sequence[Pair]) -> tuple[int, int, int, int]:
    """Hits, false alarms, misses, and answers that both find supported."""
    hits = sum(one and other for one, other in pairs)
    false_alarms = sum(one and not other for one, other in pairs)
    misses = sum(other and not one for one, other in pairs)
    return hits, false_alarms, misses, len(pairs) - hits - false_alarms - misses


def precision(pairs: Sequence[Pair]) -> float | None:
    hits, false_alarms, _, _ = counts(pairs)
    return hits / (hits + false_alarms) if hits + false_alarms else None


def recall(pairs: Sequence[Pair]) -> float | None:
    hits, _, misses, _ = counts(pairs)
    return hits / (hits + misses) if hits + misses else None


def kappa(pairs: Sequence[Pair]) -> float | None:
    """Agreement beyond chance; None when both only ever say one thing."""
    if not pairs:
        return None
    hits, false_alarms, misses, agreed = counts(pairs)
    total = len(pairs)
    observed = (hits + agreed) / total
    chance = (
        (hits + false_alarms) * (hits + misses) + (misses + agreed) * (false_alarms + agreed)
    ) / total**2
    return None if chance == 1 else (observed - chance) / (1 - chance)
