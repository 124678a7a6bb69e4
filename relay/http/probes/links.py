"""Do the links of a message answer?  Asked by HEAD, on demand, of the public internet alone.

Promises
- At most `most` links, `at_once` at a time, all within `within` seconds; nothing private is reached
  (`relay.webhooks.post`), no redirect is followed and no body is read.
- By HEAD, which changes nothing where servers keep to HTTP: a link may confirm or unsubscribe.

Never fails for what links hold or servers do: that is what it finds.
"""

from __future__ import annotations

from collections.abc import Sequence

import trio

from relay.checks.details import quoted
from relay.checks.findings import Finding
from relay.ssrf_guard import NotPublic
from relay.webhooks.post import NotPosted, Poster, Refused

_HEADERS = {"User-Agent": "Relay (do the links of this mail answer?)", "Accept": "*/*"}
# They are there: they want to know who asks, or HEAD is not among what they know.
_THERE = frozenset({401, 403, 405, 406, 407, 426, 429, 451, 501})


def unasked(missing: int, wanted: int) -> Finding:
    """What is told of links that were not looked at."""
    said = f"{missing} of {wanted} links were not asked: there are too many, or too slow."
    return Finding("more-links", "note", said)


class Links:
    """Asks; `poster` connects, and bounds how long one link may take."""

    def __init__(
        self, poster: Poster, *, most: int = 20, at_once: int = 5, within: float = 20.0
    ) -> None:
        self._poster = poster
        self._most = most
        self._at_once = at_once
        self._within = within

    async def look_at(self, links: Sequence[str]) -> list[Finding]:
        """Return what is wrong with links, in their order."""
        # What stands behind # is the reader's own business.
        wanted = list(dict.fromkeys(link.partition("#")[0] for link in links))
        asked = wanted[: self._most]
        found: dict[str, Finding | None] = {}
        places = trio.CapacityLimiter(self._at_once)

        async def look(link: str) -> None:
            async with places:
                found[link] = await self._look(link)

        with trio.move_on_after(self._within):
            async with trio.open_nursery() as nursery:
                for link in asked:
                    nursery.start_soon(look, link)
        findings = [finding for link in asked if (finding := found.get(link)) is not None]
        if missing := len(wanted) - len(found):
            findings.append(unasked(missing, len(wanted)))
        return findings

    async def _look(self, link: str) -> Finding | None:
        try:
            status = await self._poster.head(link, _HEADERS)
        except NotPosted as error:
            if isinstance(error, Refused) or isinstance(error.__cause__, NotPublic):
                said = f"The link {quoted(link)} was not asked: {error}."
                return Finding("link-not-asked", "warning", said)
            return Finding("dead-link", "error", f"The link {quoted(link)} is dead: {error}.")
        if status < 400 or status in _THERE:
            return None
        return Finding("dead-link", "error", f"The link {quoted(link)} answers {status}.")
