"""Runs a command that ends when its parent does: `python -m streams.child PARENT COMMAND…`.

On Linux the kernel sends the signal, so it works when the parent was killed with SIGKILL too;
elsewhere only an orderly stop of the parent ends the command. The command replaces this process,
so its process id is the one that the parent knows.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys
from typing import Final

_PR_SET_PDEATHSIG: Final = 1


def main(parent: int, command: list[str]) -> None:
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)
        if os.getppid() != parent:  # it died before the kernel knew
            return
    os.execvp(command[0], command)  # noqa: S606 - no shell is wanted


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2:])
