"""What an upstream reports over HTTP of mail that it took, done to its message as what comes back.

Promises
- A report counts for the message whose return path it names, if this relay signed that path
  (`relay.returns.paths`), and for no other.
- What follows is `relay.returns.law`, what is done about it `relay.outbound.returned`: once, in one
  commit, which has ended well when `take` returns.

Fails with `TemporaryFailure` while the message is still being delivered and when the database is
away: nothing has happened then, and the same report may be taken later.
"""

from __future__ import annotations

from relay.errors import TemporaryFailure
from relay.log import get_logger
from relay.outbound.returned import RETURNS, Returned, tell
from relay.returns.law import Kind, finding
from relay.returns.paths import ReturnPaths
from relay.returns.report import Report

log = get_logger()


class Notified:
    """Reports that come by other ways than mail."""

    def __init__(self, returned: Returned, paths: ReturnPaths) -> None:
        self._returned = returned
        self._paths = paths

    async def take(self, path: str, report: Report) -> Kind | None:
        """Do what follows for the message that left with this MAIL FROM; None: nothing changed."""
        message_id = self._paths.message_of(path)
        about = await self._returned.about(message_id) if message_id else None
        found = finding(report, about.recipient) if about else None
        if about is None or found is None:
            RETURNS.labels("ignored").inc()
            log.info(
                "returns.ignored", id=message_id and str(message_id), report=report.kind or None
            )
            return None
        applied = await self._returned.apply(about, found)
        if applied is None:
            raise TemporaryFailure("the message is still being delivered")
        tell(about, found, applied)
        return found.kind if applied.changed else None
