"""Pages under docs/ that are generated from the code: `python -m streams.docs [--check]`.

`--check` writes nothing, names the pages that are out of date and exits with status 1.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

import click

from streams import asyncapi, events, metrics, settings, topics

PAGES: Final[Mapping[str, Callable[[], str]]] = {
    "asyncapi.yaml": asyncapi.page,
    "events.md": events.markdown,
    "metrics.md": metrics.markdown,
    "settings.md": settings.markdown,
    "topics.md": topics.markdown,
}


def stale(folder: Path) -> list[str]:
    """Names of the pages in `folder` that do not say what the code says."""
    return [
        name
        for name, page in PAGES.items()
        if not (folder / name).is_file() or (folder / name).read_text("utf-8") != page()
    ]


def main(args: list[str]) -> int:
    folder = Path(__file__).parent.parent / "docs"
    wrong = stale(folder)
    if "--check" in args:
        for name in wrong:
            click.echo(f"docs/{name} is out of date; run: make docs", err=True)
        return 1 if wrong else 0
    folder.mkdir(exist_ok=True)
    for name in wrong:
        (folder / name).write_text(PAGES[name](), "utf-8")
        click.echo(f"wrote docs/{name}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
