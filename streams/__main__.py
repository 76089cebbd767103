"""`python -m streams` is the command `agenttrust`, where that is not on the path."""

from __future__ import annotations

from streams.cli import main

if __name__ == "__main__":
    main()
