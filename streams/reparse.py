"""`agenttrust reparse`: ask for the steps of trajectories to be read once more.

The state tells what was asked to be read, answers, tool results and messages, and with which attempt;
a request with the next attempt goes to the parse topic. Its reading replaces the one that counts now,
unless it fails.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Collection, Sequence
from typing import Final

import click
import msgspec

from monitor import ask
from monitor.bench import Bench
from monitor.errors import plain
from monitor.model import Struct
from monitor.ports import Wanted
from monitor.prefix import derive
from monitor.reading import STEP_KINDS, ParseRequest, StepKind
from monitor.work import Work
from streams import topics
from streams.errors import UserError
from streams.journal import is_trajectory, partition_of
from streams.policy_sets import PolicySetLog
from streams.requests import RequestWriter
from streams.sender import Sender
from streams.settings import Settings, load
from streams.store import RedisStore

_SHOWN: Final = 2_000
"""Characters of a line of the command; call ids come from strangers."""


class Again(Struct, frozen=True):
    """Requests for one trajectory; or, when there are none, why."""

    requests: tuple[ParseRequest, ...] = ()
    why: str = ""


def again(work: Work, bench: Bench, now: int, only: Collection[StepKind] = STEP_KINDS) -> Again:
    """Requests for the steps of a trajectory, each with the attempt after the last."""
    head = work.head
    assert head is not None
    work.revive(bench)
    if not head.settled:
        return Again(why="its run is not complete")
    answers = {
        (read.step, read.parser, read.content): 1 if read.kept is None else read.kept.attempt
        for read in head.reads
    }
    others = dict.fromkeys(head.steps_asked, 1)
    others |= {name: told.attempt for name, told in head.told.items()}
    found = []
    for request in ask.requests(derive(work.spans), head, bench, now):
        about = request.step, request.parser, request.content
        answer = request.type == "answer"
        last = answers.get(about) if answer else others.get(request.name)
        if last is not None and request.type in only:
            found.append(msgspec.structs.replace(request, attempt=last + 1))
    what = "its answer" if only == ("answer",) else "any such step"
    return Again(tuple(found), "" if found else f"no contract asks for {what} to be read")


async def reparse(
    settings: Settings, trajectories: Sequence[str], only: Collection[StepKind] = STEP_KINDS
) -> dict[str, Again]:
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
                outcomes[name] = again(work, bench, round(time.time() * 1000), only)
                await sender.send([writer.message(one) for one in outcomes[name].requests])
    finally:
        await store.close()
    return outcomes


@click.command()
@click.argument("trajectories", nargs=-1, required=True, metavar="TRAJECTORY...")
@click.option(
    "--only",
    type=click.Choice(STEP_KINDS),
    multiple=True,
    help="Steps of this kind; may be given more than once. Without: all that contracts ask for.",
)
def command(trajectories: tuple[str, ...], only: tuple[StepKind, ...]) -> None:
    """Ask for steps of trajectories to be read once more by the LLM: answers, tool results and
    messages, as far as a contract asks for them."""
    for name in trajectories:
        if not is_trajectory(name):
            raise click.UsageError(f"{name[:64]!r}: a trace id is 32 lower-case hex digits")
    outcomes = asyncio.run(reparse(load(), trajectories, only or STEP_KINDS))
    for name, outcome in outcomes.items():
        asked = ", ".join(
            f"{one.type} {one.step} attempt {one.attempt}" for one in outcome.requests
        )
        click.echo(f"{name} " + (f"asked: {plain(asked, _SHOWN)}" if asked else outcome.why))
    if any(not outcome.requests for outcome in outcomes.values()):
        raise UserError("not every trajectory could be asked for")
