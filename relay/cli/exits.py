"""The exit codes of `relay`, and the error that ends a command with one of them.

The codes above 2 are those of sysexits.h, so that a service manager can tell a mistake in
the configuration (do not restart) from a relay that is not there yet (try again).
"""

from __future__ import annotations

from typing import Final

from relay.errors import RelayError

OK: Final = 0
REFUSED: Final = 1  # not found, refused, timed out, or a check that failed
USAGE: Final = 2  # click's own
UNAVAILABLE: Final = 69  # EX_UNAVAILABLE
INTERNAL: Final = 70  # EX_SOFTWARE
KEPT: Final = 75  # EX_TEMPFAIL
CONFIG: Final = 78  # EX_CONFIG
INTERRUPTED: Final = 130  # 128 + SIGINT
PIPE: Final = 141  # 128 + SIGPIPE: the reader of our output went away

HELP = """\
Exit codes: 0 done; 1 not found, refused, timed out, or a check failed; 2 wrong usage;
69 no relay, no database or no DNS can be reached, or the relay cannot take it now; 70 internal
failure; 75 kept in the outbox, for a later try; 78 configuration error; 130 interrupted; 141 the
reader of the output went away."""


class Failure(RelayError):
    """Ends the command: one sentence for stderr, and the exit code.

    `status`: of the relay's answer over HTTP, 0 where that is not why.
    """

    def __init__(self, sentence: str, code: int = REFUSED, *, status: int = 0) -> None:
        super().__init__(sentence)
        self.code = code
        self.status = status
