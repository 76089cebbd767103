"""What a user can mend: told in one sentence, exit status 2, never a traceback."""

from __future__ import annotations

import errno
from typing import Final

_OF_OUTPUT: Final = frozenset({errno.EPIPE, errno.ENOSPC, errno.EFBIG, errno.EDQUOT, errno.EIO})


class UserError(Exception):
    """Input, a setting or a part that is not there. Each line is a sentence for the user."""

    def __init__(self, *lines: str) -> None:
        super().__init__("\n".join(lines))
        self.lines = lines


def of_output(error: BaseException) -> bool:
    """Whether it says that nobody reads what is written, or that there is no room for it."""
    return isinstance(error, OSError) and error.errno in _OF_OUTPUT
