"""What lets aiosmtpd's `SMTP` class serve a session that is no asyncio protocol.

aiosmtpd has the verbs, the envelope and a forgiving address parser; it also has a reader, a writer
and a time-out of asyncio's, which a session on Trio does not use.  `session_attributes` is what its
constructor would leave in each object.

Fails where another version keeps other names to itself: so it is pinned, and
tests/smtp/test_aiosmtpd_contract.py is the contract.
"""

from __future__ import annotations

import asyncio
import functools
from typing import Any, cast

from aiosmtpd.smtp import SMTP

VERBS = (
    *("HELO", "EHLO", "STARTTLS", "MAIL", "RCPT", "DATA", "BDAT"),
    *("RSET", "NOOP", "QUIT", "VRFY", "EXPN", "HELP"),
)
"""The verbs that are served, in the order in which HELP lists them."""

NO_LOOP = cast(asyncio.AbstractEventLoop, None)
"""The loop of aiosmtpd's session objects, where nothing runs on one."""


class _NoLoop:
    """Stands in for the loop that the constructor insists on; it runs nothing."""

    class Future:
        def done(self) -> bool:
            return False

    def create_future(self) -> _NoLoop.Future:
        return self.Future()

    def get_debug(self) -> bool:
        return False


@functools.cache
def session_attributes(
    commands: type[SMTP], *, hostname: str, max_message_bytes: int, command_timeout: float
) -> dict[str, Any]:
    """Return what aiosmtpd's constructor makes of a session of the class `commands`.

    To be copied, not changed.  The constructor looks through its handler and itself for hooks; that
    takes 110 us, a third of what a message does, so it runs once.
    """
    made = SMTP(
        object(),
        data_size_limit=max_message_bytes,
        enable_SMTPUTF8=True,
        hostname=hostname,
        ident="ESMTP Relay",
        auth_require_tls=True,
        timeout=command_timeout,
        loop=cast(asyncio.AbstractEventLoop, _NoLoop()),
    )
    attributes = dict(vars(made))
    for private in ("_reader", "_writer", "_stream_reader_wr", "_stream_writer"):
        attributes.pop(private, None)  # no session has one
    attributes["_smtp_methods"] = {verb: getattr(commands, f"smtp_{verb}") for verb in VERBS}
    return attributes
