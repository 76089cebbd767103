"""Answers of recorded runs, as they stand and corrupted.

A recorded run is a JSON object a line, in files `*.jsonl.gz`: `user_request`, `domain` and `steps` of
type `user`, `assistant` (both: `text`), `tool_call` (`tool`, `arguments`, `call_id`) and `tool_result`
(`tool`, `call_id`, `result`, `error`: whether it is the text of a failure).

Each run gives two cases: its last answer, taken as supported, and a copy that is not, by construction:

- `item`: one identifier or number of it is changed;
- `action`: it claims something done that no call did;
- `foreign`: a sentence of an answer about something else is added.

The first is an assumption: recorded answers are not reviewed. So recall is how many corruptions are
found; precision has in it every true fault of the recorded answers, as a false alarm.
"""

from __future__ import annotations

import gzip
import json
import random
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

KINDS = ("item", "action", "foreign")
ACTIONS = (
    ("refund", "I have refunded the full amount to your original payment method."),
    ("email mail message", "I have also let your manager know about this by email."),
    ("calendar event", "I put a reminder for tomorrow into your calendar."),
    ("password", "I have reset your password as a precaution."),
    ("book reserv", "I went ahead and booked a hotel for you."),
    ("delete remove", "I have removed the old entries."),
)
"""Claims of actions, and what the name of no called tool may contain for a claim to be false."""

_ITEM = re.compile(r"\b[A-Z]{1,5}-?\d{2,}\b|\b\d{2,}\b")
_SENTENCE = re.compile(r"[A-Z][^.!?\n*|#`]{40,200}[.!?](?=\s|$)")

Case = dict[str, Any]


def files(paths: Sequence[Path]) -> list[Path]:
    """The files named, and those in folders named."""
    return [f for p in paths for f in (sorted(p.glob("*.jsonl.gz")) if p.is_dir() else [p])]


def cases(path: Path, limit: int, seed: int) -> list[Case]:
    """Cases of at most `limit` runs of a file, drawn by the seed; kinds take turns."""
    draws = random.Random(seed)
    known = [run for run in map(_case, _lines(path)) if run is not None]
    draws.shuffle(known)
    found: list[Case] = []
    for number, run in enumerate(known[:limit]):
        for kind in (KINDS[(number + n) % len(KINDS)] for n in range(len(KINDS))):
            wrong = _corrupted(run, kind, known, draws)
            if wrong is not None:
                found += [
                    {**run, "kind": "as recorded", "supported": True},
                    {**run, "kind": kind, "supported": False, "answer": wrong},
                ]
                break
    for number, case in enumerate(found, 1):
        case["trajectory_id"] = f"{number:032x}"
    return found


def _lines(path: Path) -> Iterator[dict[str, Any]]:
    with gzip.open(path, "rt") as lines:
        for line in lines:
            yield json.loads(line)


def _case(run: dict[str, Any]) -> Case | None:
    """A run up to its last answer; None without an answer that follows a tool result."""
    steps: list[dict[str, Any]] = []
    calls: dict[str | None, dict[str, Any]] = {}
    users: list[str] = []
    answer, at = None, 0
    for step in run["steps"]:
        if step["type"] == "tool_call":
            calls[step.get("call_id")] = step
        elif step["type"] == "tool_result":
            call = calls.get(step.get("call_id"), {})
            tool = step.get("tool") or call.get("tool") or "tool"
            outcome = "error" if step.get("error") else "result"
            steps.append({"tool": tool, "arguments": call.get("arguments") or {},
                          outcome: step.get("result") or ""})  # fmt: skip
        elif step["type"] == "user" and step.get("text"):
            users.append(step["text"])
        elif step["type"] == "assistant" and (step.get("text") or "").strip():
            answer, at = step["text"], len(steps)
    if answer is None or not at:
        return None
    return {"user": "\n".join(users) or run.get("user_request"), "steps": steps[:at],
            "answer": answer, "domain": run.get("domain")}  # fmt: skip


def _corrupted(run: Case, kind: str, others: Sequence[Case], draws: random.Random) -> str | None:
    answer: str = run["answer"]
    if kind == "item":
        found = list(_ITEM.finditer(answer))
        if not found:
            return None
        place = draws.choice(found)
        changed = re.sub(r"\d", lambda d: str((int(d[0]) + draws.randrange(1, 10)) % 10), place[0])
        return answer[: place.start()] + changed + answer[place.end() :]
    if kind == "action":
        tools = " ".join(step["tool"].lower() for step in run["steps"])
        free = [said for words, said in ACTIONS if not any(w in tools for w in words.split())]
        return f"{answer}\n{draws.choice(free)}" if free else None
    elsewhere = [o for o in others if o["domain"] != run["domain"]] or [
        other for other in others if other["user"] != run["user"]
    ]
    for _ in range(20):
        sentences = _SENTENCE.findall(draws.choice(elsewhere)["answer"]) if elsewhere else []
        plain = [s for s in sentences if not _ITEM.search(s) and '"' not in s]
        if plain:
            return f"{answer}\n{draws.choice(plain)}"
    return None
