"""Installs pip into the environment that runs this, for a Python without `ensurepip`.

Debian splits pip out of Python. One pinned wheel is fetched from the package index and checked
by its hash; a wheel of pip can be run to install itself.
"""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from urllib.parse import urljoin
from urllib.request import Request, urlopen

WHEEL = "pip-26.3-py3-none-any.whl"
SHA256 = "f3b60b20ffaadd4415ed7957212a38ac63fa4c5fa375bd0f4a797777940fad13"
INDEX = os.environ.get("PIP_INDEX_URL", "").rstrip("/")
ADVICE = "On Debian: apt install python3-venv; elsewhere set PIP_INDEX_URL"


def fetch() -> bytes:
    page = f"{INDEX}/pip/"
    accept = {"Accept": "application/vnd.pypi.simple.v1+json"}  # PEP 691
    with urlopen(Request(page, headers=accept), timeout=60) as answer:  # noqa: S310
        files = json.load(answer)["files"]
    url = next(urljoin(page, f["url"]) for f in files if f["filename"] == WHEEL)
    with urlopen(url, timeout=60) as answer:  # noqa: S310
        data: bytes = answer.read()
    return data


def main() -> None:
    if not INDEX:
        sys.exit(f"This Python has neither pip nor ensurepip. {ADVICE}")
    try:
        data = fetch()
    except Exception as error:  # noqa: BLE001 - whatever it is, the advice is the same
        sys.exit(f"Cannot fetch pip from {INDEX} ({error}). {ADVICE}")
    if hashlib.sha256(data).hexdigest() != SHA256:
        sys.exit(f"{WHEEL} from {INDEX} is not what was expected. {ADVICE}")
    with tempfile.TemporaryDirectory() as folder:
        wheel = Path(folder, WHEEL)
        wheel.write_bytes(data)
        command = [sys.executable, f"{wheel}/pip", "install", "--quiet", "--no-index", str(wheel)]
        subprocess.run(command, check=True)  # noqa: S603


if __name__ == "__main__":
    main()
