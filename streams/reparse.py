"""`agenttrust reparse`: ask for the answers of trajectories to be read once more.

The state tells what was read and with which attempt; a request with the next attempt goes to the
parse topic. Its reading replaces the one that counts now, unless it fails.
"""

from __future__ import annotations

import asyncio
import time

import click
import msgspec

from monitor import ask
from monitor.bench import Bench
from monitor.model import Struct
from monitor.ports import Wanted
from monitor.prefix import derive
from monitor.reading import ParseRequest
from monitor.work import Work
from streams import topics
from streams.errors import UserError
from streams.journal import is_trajectory, partition_of
from streams.policy_sets import PolicySetLog
from streams.requests import RequestWriter
from streams.sender import Sender
from streams.settings import Settings, load
from streams.store import RedisStore


class Again(Struct, frozen=True):
    """Requests for one trajectory; or, when there are none, why."""

    requests: tuple[ParseRequest, ...] = ()
    why: str = ""


def again(work: Work, bench: Bench, now: int) -> Again:
    """Requests for the answers of a trajectory, each with the attempt after the last."""
    head = work.head
    assert head is not None
    work.revive(bench)
    if not head.settled:
        return Again(why="its run is not complete")
    attempts = {
        (read.step, read.parser, read.content): 1 if read.kept is None else read.kept.attempt
        for read in head.reads
    }
    found = []
    for request in ask.requests(derive(work.spans), head, bench, now):
        last = attempts.get((request.step, request.parser, request.content))
        if last is not None:
            found.append(msgspec.structs.replace(request, attempt=last + 1))
    return Again(tuple(found), "" if found else "no contract asks for its answer to be read")


async def reparse(settings: Settings, trajectories: tuple[str, ...]) -> dict[str, Again]:
    """Sends the requests; what became of each trajectory."""
    plan = topics.plan(settings)
    writer = RequestWriter(plan.parse.name, settings.partitions)
    outcomes: dict[str, Again] = {}
    store = await RedisStore.connect(
        settings.redis_url,
        prefix=settings.topic_prefix,
        partitions=settings.partitions,
        ttl=2 * settings.state_ttl + settings.allowed_lag,
        access=settings.redis_args(),
    )
    try:
        async with Sender(settings) as sender, PolicySetLog(settings, plan.contracts.name) as sets:
            for name in trajectories:
                partition = partition_of(name, settings.partitions)
                _, loaded = await store.load(partition, {name: Wanted(content=True)})
                work = Work(name, loaded[name])
                if work.head is None:
                    outcomes[name] = Again(why="nothing is known of it")
                    continue
                bench = Bench(await sets.get(work.head.policy_set))
                outcomes[name] = again(work, bench, round(time.time() * 1000))
                await sender.send([writer.message(one) for one in outcomes[name].requests])
    finally:
        await store.close()
    return outcomes


@click.command()
@click.argument("trajectories", nargs=-1, required=True, metavar="TRAJECTORY...")
def command(trajectories: tuple[str, ...]) -> None:
    """Ask for the answers of trajectories to be read once more by the LLM."""
    for name in trajectories:
        if not is_trajectory(name):
            raise click.UsageError(f"{name[:64]!r}: a trace id is 32 lower-case hex digits")
    outcomes = asyncio.run(reparse(load(), trajectories))
    for name, outcome in outcomes.items():
        asked = f"asked, attempt {outcome.requests[0].attempt}" if outcome.requests else outcome.why
        click.echo(f"{name} {asked}")
    if any(not outcome.requests for outcome in outcomes.values()):
        raise UserError("not every trajectory could be asked for")
