"""What an upstream reports over HTTP of mail that it took, done to its message as what comes back.

Promises
- A report counts for the message whose return path or token it names, if this relay signed that
  (`relay.returns.paths`), and for no other: neither an id nor a Message-ID is believed, for whoever
  writes a message chooses what an upstream repeats of it.
- What follows is `relay.returns.law`, what is done about it `relay.outbound.returned`: once, in one
  commit, which has ended well when `take` returns.

Fails with `TemporaryFailure` while the message is still being delivered and when the database is
away: nothing has happened then, and the same report may be taken later.
"""

from __future__ import annotations

from uuid import UUID

from relay.errors import TemporaryFailure
from relay.log import get_logger
from relay.outbound.returned import RETURNS, Returned, tell
from relay.returns.law import Kind, finding
from relay.returns.notice import Notice
from relay.returns.paths import ReturnPaths, Tokens

log = get_logger()


class Notified:
    """Reports that come by other ways than mail."""

    def __init__(self, returned: Returned, tokens: Tokens, paths: ReturnPaths | None) -> None:
        """`paths`: None where mail leaves with its sender's address as MAIL FROM."""
        self._returned = returned
        self._tokens = tokens
        self._paths = paths

    async def take(self, notice: Notice, post: str | None = None) -> Kind | None:
        """Do what follows for the message that a notice names; None: nothing changed.

        `post`: the id of what brought it, under which it counts once.
        """
        report = notice.report
        named = map(self._message_of, notice.names)
        message_id = next((one for one in named if one is not None), None)
        about = await self._returned.about(message_id) if message_id else None
        found = finding(report, about.recipient) if about else None
        if about is None or found is None:
            RETURNS.labels("ignored").inc()
            log.info(
                "returns.ignored", id=message_id and str(message_id), report=report.kind or None
            )
            return None
        applied = await self._returned.apply(about, found, post=post)
        if applied is None:
            raise TemporaryFailure("the message is still being delivered")
        tell(about, found, applied)
        return found.kind if applied.changed else None

    def _message_of(self, name: str) -> UUID | None:
        if "@" not in name:
            return self._tokens.message_of(name.strip())
        return None if self._paths is None else self._paths.message_of(name)
