"""The jars of Apache Kafka: resolved once by Maven from pom.xml, kept in the user's cache."""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import Final

POM: Final = Path(__file__).parent / "pom.xml"
VERSION: Final = re.findall(
    r"<artifactId>kafka_2\.13</artifactId>\s*<version>([^<]+)</version>", POM.read_text()
)[0]
JAVA: Final = 17
"""The oldest Java that runs a Kafka 4 broker."""
_FETCH: Final = 900.0


class MissingError(Exception):
    """What this machine lacks, in one line."""


def folder() -> Path:
    """Where the jars of this very pom.xml lie, or will."""
    cache = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    digest = hashlib.sha256(POM.read_bytes()).hexdigest()[:12]
    return Path(cache) / "agenttrust" / f"kafka-{VERSION}-{digest}"


def java() -> str:
    """The Java to run. Raises MissingError."""
    binary = shutil.which("java")
    if binary is None:
        raise MissingError("no java")
    told = subprocess.run([binary, "-version"], capture_output=True, text=True, check=False)  # noqa: S603
    found = re.search(r'version "(?:1\.)?(\d+)', told.stderr)
    if found is None or int(found[1]) < JAVA:
        raise MissingError(f"java is {found[1] if found else 'of no known version'}, not >= {JAVA}")
    return binary


def cached() -> Path:
    """The folder of jars that were fetched before. Raises MissingError."""
    if not folder().is_dir():
        raise MissingError(
            "the jars of Apache Kafka were not fetched: python -m deploy.local --fetch"
        )
    return folder()


def fetch() -> Path:
    """The folder of jars, filled by Maven when it is not there. Raises MissingError."""
    target = folder()
    if target.is_dir():
        return target
    maven = shutil.which("mvn")
    if maven is None:
        raise MissingError("no mvn")
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=target.parent) as part:
        command = [maven, "-B", "-q", "-f", str(POM), "dependency:copy-dependencies"]
        command += ["-DincludeScope=runtime", f"-DoutputDirectory={part}/jars"]
        command += [f"-DbuildDirectory={part}/build"]
        try:
            done = subprocess.run(  # noqa: S603
                command, capture_output=True, text=True, timeout=_FETCH, check=False
            )
        except subprocess.TimeoutExpired:
            raise MissingError(f"mvn took longer than {_FETCH:g} s") from None
        if done.returncode or not list(Path(part, "jars").glob("kafka_2.13-*.jar")):
            said = [line for line in (done.stdout + done.stderr).splitlines() if "ERROR" in line]
            raise MissingError(f"mvn failed: {said[0] if said else done.returncode}")
        try:
            Path(part, "jars").rename(target)
        except OSError:
            if not target.is_dir():  # or somebody else was faster
                raise
    return target
