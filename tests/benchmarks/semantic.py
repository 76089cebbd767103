"""Precision and recall of the semantic layer beside the deterministic grounding, against answers of
which it is known whether they are supported.

    python -m tests.benchmarks.semantic --url http://127.0.0.1:8000/v1 --model m
    python -m tests.benchmarks.semantic --url … --model m --traces tau2.jsonl.gz --limit 100

Without `--traces`: the reviewed example. With: recorded runs (a JSON object a line: `user_request`,
`steps` of type tool_call, tool_result, assistant); each answer counts as supported as it stands, which
is an assumption, and a copy of it with one identifier or number changed (seeded) as unsupported. That
measures how a corruption is found, not how true the recorded answers are.
"""

from __future__ import annotations

import argparse
import gzip
import json
import random
import re
from pathlib import Path
from typing import Any

from streams.batches import Cut
from streams.calibration import Human
from streams.judge import report, text
from streams.llm import Config
from tests.semantic_cases import judge, read_cases
from tests.traces import contract

_ITEM = re.compile(r"\b[A-Z]{1,5}-?\d{2,}\b|\b\d{2,}\b")


def traces(path: Path, limit: int, seed: int) -> list[dict[str, Any]]:
    """Cases from recorded runs, each twice: as it stands, and corrupted."""
    draws = random.Random(seed)
    cases: list[dict[str, Any]] = []
    with gzip.open(path, "rt") as lines:
        for line in lines:
            run = json.loads(line)
            steps, calls = [], {}
            answer = None
            for step in run["steps"]:
                if step["type"] == "tool_call":
                    calls[step.get("call_id")] = step
                elif step["type"] == "tool_result":
                    call = calls.get(step.get("call_id"), {})
                    steps.append({"tool": step.get("tool") or call.get("tool"),
                                  "arguments": call.get("arguments", {}),
                                  "result": step.get("result")})  # fmt: skip
                elif step["type"] == "assistant" and step.get("text"):
                    answer = step["text"]
            found = list(_ITEM.finditer(answer or ""))
            if answer is None or not steps or not found:
                continue
            place = draws.choice(found)
            digits = "".join(draws.choice("0123456789") if c.isdigit() else c for c in place[0])
            if digits == place[0]:
                continue
            wrong = answer[: place.start()] + digits + answer[place.end() :]
            for said, supported in ((answer, True), (wrong, False)):
                cases.append(
                    {"trajectory_id": f"{len(cases) + 1:032x}", "supported": supported,
                     "user": run.get("user_request"), "steps": steps, "answer": said}
                )  # fmt: skip
            if len(cases) >= 2 * limit:
                break
    return cases


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--url", required=True)
    parser.add_argument("--model", required=True)
    parser.add_argument("--key", default="")
    parser.add_argument("--traces", type=Path)
    parser.add_argument("--limit", type=int, default=50)
    parser.add_argument("--items", type=int, default=8)
    parser.add_argument("--output-tokens", type=int, default=1500)
    parser.add_argument("--deadline", type=float, default=600)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    cases = read_cases() if args.traces is None else traces(args.traces, args.limit, args.seed)
    config = Config(args.url, args.model, args.key, deadline=args.deadline,
                    output_tokens=args.output_tokens)  # fmt: skip
    judged = judge(cases, contract(semantic={"mode": "advisory"}), config, Cut(args.items))
    humans = [Human(case["trajectory_id"], case["supported"]) for case in cases]
    print(text(report(judged.readings, judged.labels, humans, args.seed)))
    print("counts         ", json.dumps(judged.counts))


if __name__ == "__main__":
    main()
