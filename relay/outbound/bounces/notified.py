"""What an upstream reports over HTTP of mail that it took, done to its message as what comes back.

Promises
- A report counts for the message whose return path or token it names, if this relay signed that
  (`relay.returns.paths`), and for no other: neither an id nor a Message-ID is believed, for whoever
  writes a message chooses what an upstream repeats of it.
- What follows is `relay.returns.law`, what is done about it `relay.outbound.bounces.returned`:
  once, in one commit, which has ended well when `take` returns.
- Who unsubscribed by an upstream's link is as one who did by ours: gets no more bulk mail of the
  owner's (`relay.outbound.suppression.suppressions`).

Fails with `TemporaryFailure` while the message is still being delivered and when the database is
away: nothing has happened then, and the same report may be taken later.
"""

from __future__ import annotations

from uuid import UUID

from relay.errors import TemporaryFailure
from relay.log import get_logger
from relay.outbound.bounces.returned import RETURNS, Returned, tell
from relay.outbound.suppression.suppressions import Suppressions
from relay.returns.law import finding
from relay.returns.paths import ReturnPaths, Tokens
from relay.returns.upstream_report import UpstreamReport

log = get_logger()


class Notified:
    """Reports that come by other ways than mail."""

    def __init__(
        self,
        returned: Returned,
        suppressions: Suppressions,
        tokens: Tokens,
        paths: ReturnPaths | None,
    ) -> None:
        """`paths`: None where mail leaves with its sender's address as MAIL FROM."""
        self._returned = returned
        self._suppressions = suppressions
        self._tokens = tokens
        self._paths = paths

    async def take(self, reported: UpstreamReport, post: str | None = None) -> bool:
        """Do what follows for the message that a report names; True if that changed something.

        `post`: the id of what brought it, under which it counts once.
        """
        report = reported.report
        named = map(self._message_of, reported.names)
        message_id = next((one for one in named if one is not None), None)
        if reported.unsubscribes and message_id is not None:
            is_new = await self._suppressions.unsubscribe_recipient(message_id)
            if is_new:
                log.info("outbound.unsubscribed", id=str(message_id))
            return is_new
        about = await self._returned.about(message_id) if message_id else None
        found = finding(report, about.recipient) if about else None
        if about is None or found is None:
            RETURNS.labels("ignored").inc()
            log.info(
                "returns.ignored", id=message_id and str(message_id), report=report.kind or None
            )
            return False
        applied = await self._returned.apply(about, found, post=post)
        if applied is None:
            raise TemporaryFailure("the message is still being delivered")
        tell(about, found, applied)
        return applied.changed

    def _message_of(self, name: str) -> UUID | None:
        if "@" not in name:
            return self._tokens.message_of(name.strip())
        return None if self._paths is None else self._paths.message_of(name)
