"""`agenttrust send`: OTLP files to Kafka, as a Collector would write them."""

from __future__ import annotations

import asyncio
from pathlib import Path

import click
from aiokafka.errors import KafkaError

from streams.errors import UserError
from streams.gateway import KafkaSink
from streams.otlp_files import JSON, OtlpFile, gaps, read_files
from streams.settings import Settings, load
from streams.split import LOGS, TRACES, Cut, cut_json, cut_protobuf
from streams.topics import admin, partition_counts, plan


def messages(file: OtlpFile, limit: int) -> Cut:
    """What to write for a file: its bytes, or several requests when they are too many."""
    parsed = file.parsed()
    if len(file.body) <= limit:
        return Cut([file.body])
    signal = TRACES if file.signal == "traces" else LOGS
    return (cut_json if file.media == JSON else cut_protobuf)(parsed, signal, limit)


async def _send(settings: Settings, files: list[OtlpFile], *, pace: bool) -> None:
    topics = plan(settings)
    names = {"traces": topics.spans.name, "logs": topics.logs.name}
    cuts = {id(file): messages(file, settings.max_message_bytes) for file in files}
    async with admin(settings) as client:
        counts = await partition_counts(client, list(names.values()))
    if missing := {names[file.signal] for file in files} - counts.keys():
        told = ", ".join(sorted(missing))
        raise UserError(
            f"no topic {told} at {settings.kafka_bootstrap}; run: agenttrust topics create"
        )
    sink = KafkaSink(settings)
    sent = refused = 0
    try:
        for wait, file in gaps(files):
            if pace:
                await asyncio.sleep(wait)
            cut = cuts[id(file)]
            await sink.write(names[file.signal], cut.messages)
            sent += len(cut.messages)
            refused += cut.refused
    except (KafkaError, OSError) as error:
        raise UserError(f"not written to {settings.kafka_bootstrap}: {error}") from None
    finally:
        await sink.close()
    click.echo(f"{len(files)} files sent as {sent} messages")
    if refused:
        raise UserError(f"{refused} spans or records are too large for a message and were left out")


@click.command()
@click.argument("paths", nargs=-1, required=True, type=click.Path(path_type=Path))
@click.option("--pace", is_flag=True, help="Keep the recorded time between requests, up to 3 s.")
def send(paths: tuple[Path, ...], *, pace: bool) -> None:
    """Send OTLP files (.pb, .json; folders in name order) to Kafka.

    A file with .logs. in its name goes to the logs topic, any other to the spans topic.
    """
    settings = load()
    asyncio.run(_send(settings, read_files(paths), pace=pace))
