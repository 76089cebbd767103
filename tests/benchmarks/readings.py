"""`make bench-readings`: what an LLM costs those who do not wait for it, beside its goals.

    python -m tests.benchmarks.readings [--answers 2000] [--rate 50] [--latency 0.8] [--rounds 3]

Three roles as processes on a Kafka and a Redis of this run alone; a scripted server answers well after
`latency` seconds. Rounds with and without readings take turns. Measured are calls for an answer, the
time from the send of a run's last span to its first verdict of the deterministic layers (median and
p99, by the broker's clock), processor time for a run, and the memory of each worker: the highest in the
last quarter of a round over the highest in the second. Answers go before at the same rate: new topics
and groups keep a broker at full load for a second or two, in which every role waits for a processor.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import threading
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from statistics import median
from typing import Any, Final

import msgspec

from monitor.label import Label
from streams.events import read
from tests import services
from tests.answered import answered
from tests.benchmarks import bed
from tests.benchmarks.told import told
from tests.deployment import Deployment
from tests.llm_server import Asked, ServerThread, read_well

CONTRACT = """
contract: desk
version: 1
grounding: paper
semantic: {mode: MODE}
"""

ROLES: Final = ("ingest", "evaluate", "parse")
CALLS, MEDIAN, P99, FLAT = 0.15, 1.10, 1.5, 1.1
"""Goals: at most."""
_LOOK: Final = 0.5


class Worker:
    """The memory of one process, as it was seen."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self.megabytes: list[float] = []

    def look(self) -> None:
        """Notes its resident memory."""
        for line in Path(f"/proc/{self.pid}/status").read_text().splitlines():
            if line.startswith("VmRSS:"):
                self.megabytes.append(int(line.split()[1]) / 1024)

    @property
    def growth(self) -> float:
        """Highest memory of the last quarter over that of the second."""
        quarter = max(1, len(self.megabytes) // 4)
        return max(self.megabytes[-quarter:]) / max(self.megabytes[quarter : 2 * quarter + 1])


@contextmanager
def watched(workers: dict[str, Worker]) -> Iterator[None]:
    """Looks at the workers now and then."""
    done = threading.Event()

    def look() -> None:
        while not done.wait(_LOOK):
            for worker in workers.values():
                worker.look()

    thread = threading.Thread(target=look)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()


class Round(msgspec.Struct):
    """Figures of one round. Times are seconds."""

    median: float
    p99: float
    calls: float
    """For an answer."""
    states: dict[str, int]
    """Answers by the state of their semantic layer."""
    cpu: dict[str, float]
    """Milliseconds of processor time for a run, by role."""
    growth: dict[str, float]
    megabytes: dict[str, float]


def measure(parts: bed.Parts, name: str, args: argparse.Namespace, mode: str) -> Round:
    async def slow(asked: Asked) -> Any:
        await asyncio.sleep(args.latency)
        return read_well(asked)

    with ServerThread(slow) as llm, ExitStack() as stack:
        deployment = parts.deployment(name, llm_url=llm.url, llm_model="m")
        (deployment.folder / "contracts" / "desk.yaml").write_text(CONTRACT.replace("MODE", mode))
        workers = {r: Worker(stack.enter_context(bed.worker(deployment, r))) for r in ROLES}
        names = [os.urandom(16).hex() for _ in range(args.answers + args.warm)]
        values = [
            list(answered(f"Order {number:06d} is here", trace=name))
            for number, name in enumerate(names)
        ]
        early = [v for run in values[: args.warm] for v in run]
        deployment.send(early, seconds=args.warm / args.rate)
        services.wait_for(lambda: len(first_verdicts(deployment)) >= args.warm, "warm-up", 120)
        pids = [worker.pid for worker in workers.values()]
        before = bed.spent(pids)
        with watched(workers):
            flat = [v for run in values[args.warm :] for v in run]
            deployment.send(flat, seconds=args.answers / args.rate)
        wanted = set(names)

        def done() -> bool:
            found = semantic_states(deployment)
            states = {"off"} if mode == "off" else {"pass", "fail", "unassessed"}
            return sum(found.get(name) in states for name in wanted) == len(wanted)

        services.wait_for(done, "every answer to end", 300)
        spent = [
            1000 * (b - a) / args.answers for a, b in zip(before, bed.spent(pids), strict=True)
        ]
        verdicts = first_verdicts(deployment)
        sent = sent_at(deployment, names)
        delays = sorted(verdicts[n] - sent[n] for n in names[args.warm :])
        states = list(semantic_states(deployment).values())
        return Round(
            median=median(delays),
            p99=delays[int(0.99 * (len(delays) - 1))],
            calls=len(llm.server.asked) / len(names),
            states={state: states.count(state) for state in set(states)},
            cpu=dict(zip(workers, spent, strict=True)),
            growth={role: worker.growth for role, worker in workers.items()},
            megabytes={role: max(worker.megabytes) for role, worker in workers.items()},
        )


def first_verdicts(deployment: Deployment) -> dict[str, float]:
    """Broker time, in seconds, of the first label of each trajectory with a verdict."""
    found: dict[str, float] = {}
    for record in deployment.read(deployment.plan.labels.name):
        body = read(record.headers, record.value).body
        assert isinstance(body, Label)
        if body.layers["grounding"] in ("pass", "fail"):
            found.setdefault(body.trajectory_id, record.timestamp / 1000)
    return found


def semantic_states(deployment: Deployment) -> dict[str, str]:
    found: dict[str, str] = {}
    for record in deployment.read(deployment.plan.labels.name):
        body = read(record.headers, record.value).body
        assert isinstance(body, Label)
        found[body.trajectory_id] = body.layers.get("semantic", "off")
    return found


def sent_at(deployment: Deployment, names: list[str]) -> dict[str, float]:
    """Broker time, in seconds, of each trajectory's last span."""
    found: dict[str, float] = {}
    wanted = {bytes.fromhex(name): name for name in names}
    for record in deployment.read(deployment.plan.spans.name):
        start = record.value.find(b"\x0a\x10")
        while start >= 0:
            name = wanted.get(record.value[start + 2 : start + 18])
            if name is not None:
                found[name] = max(found.get(name, 0), record.timestamp / 1000)
                break
            start = record.value.find(b"\x0a\x10", start + 1)
    return found


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--answers", type=int, default=2000)
    parser.add_argument("--rate", type=float, default=50)
    parser.add_argument("--latency", type=float, default=0.8)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--warm", type=int, default=500, help="answers sent before, not measured")
    parser.add_argument("--embedded", action="store_true", help="on the parts of agenttrust dev")
    args = parser.parse_args()
    found: dict[str, list[Round]] = {"off": [], "advisory": []}
    with bed.embedded() if args.embedded else bed.real() as parts:
        for number in range(args.rounds):
            for mode, rounds in found.items():
                one = measure(parts, f"{mode}{number}", args, mode)
                rounds.append(one)
                print(f"{mode:9} {line(one)}", flush=True)
    report(found["off"], found["advisory"])


def line(one: Round) -> str:
    cpu = ", ".join(f"{role} {ms:.1f}" for role, ms in one.cpu.items())
    memory = ", ".join(f"{role} {mb:.0f}" for role, mb in one.megabytes.items())
    return (
        f"median {one.median:.3f} s, p99 {one.p99:.3f} s, {one.calls:.3f} calls an answer,"
        f" ms of processor a run: {cpu}; MB: {memory}; {one.states}"
    )


def report(off: Sequence[Round], on: Sequence[Round]) -> None:
    """Each figure beside its goal: the median of the rounds."""

    def ratio(name: str) -> float:
        return median(getattr(r, name) for r in on) / median(getattr(r, name) for r in off)

    print()
    told("calls for an answer", median(one.calls for one in on), CALLS)
    told("median time to a deterministic verdict, over without", ratio("median"), MEDIAN)
    told("p99 of it, over without", ratio("p99"), P99)
    for role in ROLES:
        told(f"memory of {role}, last quarter over second", max(o.growth[role] for o in on), FLAT)
    for role in ROLES[:2]:
        more = median(o.cpu[role] for o in on) / median(o.cpu[role] for o in off)
        told(f"processor time of {role} for a run, over without", more)


if __name__ == "__main__":
    main()
