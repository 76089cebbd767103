"""What a user can mend: told in one sentence, exit status 2, never a traceback."""

from __future__ import annotations


class UserError(Exception):
    """Input, a setting or a part that is not there. Each line is a sentence for the user."""

    def __init__(self, *lines: str) -> None:
        super().__init__("\n".join(lines))
        self.lines = lines
