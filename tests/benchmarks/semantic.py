"""Precision and recall of the semantic layer beside the deterministic grounding, against answers of
which it is known whether they are supported.

    python -m tests.benchmarks.semantic --url http://127.0.0.1:8000/v1 --model m
    python -m tests.benchmarks.semantic --url … --model m --traces FOLDER --limit 100
    python -m tests.benchmarks.semantic --small --traces FOLDER --limit 4
    python -m tests.benchmarks.semantic --search --traces FOLDER

Without `--traces`: the reviewed example. With: recorded runs, as they stand and corrupted; see
`tests/benchmarks/corrupted.py` for their format and for what the figures then mean. In place of a
server of yours, `--small` starts the smallest real model there is (extra `llm-test`), and `--search` a
reader without a model, whose pointers are found by search: that measures the code that decides.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from monitor.label import Label
from streams.batches import Cut
from streams.calibration import Human, agreement
from streams.judge import report, text
from streams.llm import Config
from tests.benchmarks import corrupted
from tests.benchmarks.reader import search
from tests.llm_server import ServerThread
from tests.semantic_cases import Judged, judge, read_cases
from tests.small_model import MODEL, small_model
from tests.traces import contract

_UNSUPPORTED = {"pass": False, "fail": True}
LAYERS = ("semantic", "grounding", "either")


def found_by(label: Label, layer: str) -> bool | None:
    """Whether a layer finds an answer unsupported; None when it is not assessed."""
    if layer != "either":
        return _UNSUPPORTED.get(label.layers[layer])  # type: ignore[index]
    both = [found_by(label, one) for one in LAYERS[:2]]
    return None if both == [None, None] else True in both


def by_kind(labels: Sequence[Label], cases: Sequence[Mapping[str, Any]], seed: int) -> str:
    """A line for each kind of corruption: how many of those assessed were found, by each layer. Of
    the answers as recorded: how many were flagged."""
    lines = []
    kinds = dict.fromkeys(case["kind"] for case in cases)
    for kind in kinds:
        own = [case for case in cases if case["kind"] == kind]
        shown = []
        for layer in LAYERS:
            verdicts = {(label.trajectory_id, ""): found_by(label, layer) for label in labels}
            # Asked as if all were unsupported, recall is the share that is flagged.
            one = agreement(verdicts, [Human(c["trajectory_id"], False) for c in own], seed=seed)
            share = "-" if one.recall.value is None else f"{one.recall.value:.2f}"
            shown.append(f"{layer} {share} of {one.cases}")
        lines.append(f"  {kind:12} {', '.join(shown)}")
    return "flagged\n" + "\n".join(lines)


def told(judged: Judged, cases: Sequence[dict[str, Any]], seed: int) -> str:
    humans = [Human(case["trajectory_id"], case["supported"]) for case in cases]
    lines = [text(report(judged.readings, judged.labels, humans, seed))]
    if all("kind" in case for case in cases):
        lines.append(by_kind(judged.labels, cases, seed))
    return "\n\n".join([*lines, f"counts          {json.dumps(judged.counts)}"])


@contextmanager
def asked(args: argparse.Namespace) -> Iterator[tuple[str, str]]:
    """URL and model of who reads."""
    if args.search:
        with ServerThread(search) as server:
            yield server.url, "search"
    elif args.small:
        with tempfile.TemporaryDirectory() as folder, small_model(Path(folder)) as url:
            yield url, MODEL
    else:
        yield args.url, args.model


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    who = parser.add_mutually_exclusive_group(required=True)
    who.add_argument("--url", help="base URL of an OpenAI-compatible server; needs --model")
    who.add_argument("--small", action="store_true")
    who.add_argument("--search", action="store_true")
    parser.add_argument("--model")
    parser.add_argument("--key", default="")
    parser.add_argument("--traces", type=Path, action="append", help="a file, or a folder of them")
    parser.add_argument("--limit", type=int, default=50, help="runs of each file")
    parser.add_argument("--items", type=int, default=8)
    parser.add_argument("--output-tokens", type=int, default=1500)
    parser.add_argument("--deadline", type=float, default=600)
    parser.add_argument("--concurrency", type=int, default=4)
    parser.add_argument("--rubric", default="")
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    if args.url and not args.model:
        parser.error("--url needs --model")
    judging = contract(semantic={"mode": "advisory", "rubric": args.rubric})
    with asked(args) as (url, model):
        config = Config(url, model, args.key, deadline=args.deadline,
                        output_tokens=args.output_tokens, concurrency=args.concurrency)  # fmt: skip
        files = [None] if args.traces is None else corrupted.files(args.traces)
        for path in files:
            cases = read_cases() if path is None else corrupted.cases(path, args.limit, args.seed)
            name = "reviewed example" if path is None else path.name
            print(f"== {name}, {len(cases)} answers, read by {model}", flush=True)
            if cases:
                judged = judge(cases, judging, config, Cut(args.items))
                print(told(judged, cases, args.seed), "\n", flush=True)


if __name__ == "__main__":
    main()
