"""What an LLM costs those who do not wait for it: answers at a steady rate, with readings and without.

    python -m tests.benchmarks.readings [--answers 2000] [--rate 50] [--latency 0.8] [--rounds 3]

Three roles as processes on a broker and a Redis; a scripted server answers well after `latency`
seconds. Rounds with and without readings take turns. Told are calls for an answer, the time from the
send of a run's last span to its first final deterministic verdict (median and p99, by the broker's
clock), and the memory of each worker. The aims: at most 0.15 calls an answer, the median within 10 %
and p99 within 1.5 times of what they are without readings.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from statistics import median
from typing import Any

from monitor.label import Label
from streams.events import read
from tests import services
from tests.answered import answered
from tests.deployment import Deployment, settings
from tests.llm_server import Asked, ServerThread, read_well

CONTRACT = """
contract: desk
version: 1
grounding: paper
semantic: {mode: MODE}
"""


@contextmanager
def parts(folder: Path) -> Iterator[tuple[str, str]]:
    """A broker and a Redis of this run alone."""
    broker, store = services.free_port(), services.free_port()
    with (
        services.start_broker(broker, folder / "broker.log"),
        services.start_redis_server(store, folder),
    ):
        yield f"127.0.0.1:{broker}", f"redis://127.0.0.1:{store}/0"


def memory(pid: int) -> float:
    """Resident MB of a process."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) / 1024
    return 0.0


def measure(broker: str, redis_url: str, folder: Path, args: argparse.Namespace, mode: str) -> Any:
    async def slow(asked: Asked) -> Any:
        await asyncio.sleep(args.latency)
        return read_well(asked)

    folder.mkdir()
    contracts = folder / "contracts"
    contracts.mkdir()
    (contracts / "desk.yaml").write_text(CONTRACT.replace("MODE", mode))
    with ServerThread(slow) as llm, ExitStack() as stack:
        deployment = Deployment(
            settings(broker, redis_url, folder.name, contracts=contracts, llm_url=llm.url,
                     llm_model="m", session_timeout="10s"),
            folder,
        )  # fmt: skip
        deployment.create()
        workers = {
            role: stack.enter_context(deployment.worker(role))
            for role in ("ingest", "evaluate", "parse")
        }
        values, names = [], []
        for number in range(args.answers + args.warm):
            name = os.urandom(16).hex()
            names.append(name)
            values.append(list(answered(f"Order {number:06d} is here", trace=name)))
        flat = [value for run in values for value in run]
        warm = args.warm * len(values[0])
        deployment.send(flat[:warm])
        services.wait_for(lambda: len(first_verdicts(deployment)) >= args.warm, "warm-up", 120)
        before = {role: memory(w._process.pid) for role, w in workers.items() if w._process}
        deployment.send(flat[warm:], seconds=args.answers / args.rate)
        wanted = set(names)

        def done() -> bool:
            found = semantic_states(deployment)
            states = {"off"} if mode == "off" else {"pass", "fail", "unassessed"}
            return sum(found.get(name) in states for name in wanted) == len(wanted)

        services.wait_for(done, "every answer to end", 300)
        after = {role: memory(w._process.pid) for role, w in workers.items() if w._process}
        verdicts = first_verdicts(deployment)
        sent = sent_at(deployment, names)
        delays = sorted(verdicts[n] - sent[n] for n in names[args.warm :])
        states = list(semantic_states(deployment).values())
        return {
            "median": median(delays), "p99": delays[int(0.99 * (len(delays) - 1))],
            "calls": len(llm.server.asked) / len(names),
            "states": {state: states.count(state) for state in set(states)},
            "memory": {role: (round(before[role]), round(after[role])) for role in after},
        }  # fmt: skip


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
    parser.add_argument("--warm", type=int, default=50)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        with parts(folder) as (broker, redis_url):
            found: dict[str, list[Any]] = {"off": [], "advisory": []}
            for number in range(args.rounds):
                for mode, all_ in found.items():
                    began = time.monotonic()
                    one = measure(broker, redis_url, folder / f"{mode}{number}", args, mode)
                    all_.append(one)
                    print(f"{mode:9} {one} in {time.monotonic() - began:.0f} s", flush=True)
    for name in ("median", "p99"):
        without, with_ = (median(one[name] for one in found[m]) for m in ("off", "advisory"))
        print(
            f"{name}: {without:.3f} s without, {with_:.3f} s with readings ({with_ / without:.2f})"
        )
    print(f"calls for an answer: {median(one['calls'] for one in found['advisory']):.3f}")


if __name__ == "__main__":
    main()
