"""Do the links of a message answer?  Asked by HEAD, on demand, of the public internet alone.

Promises
- At most `most` links, `at_once` at a time, all within `within` seconds; nothing private is reached
  (`relay.webhooks.post`), no redirect is followed and no body is read.
- By HEAD, which changes nothing where servers keep to HTTP: a link may confirm or unsubscribe.

Never fails for what links hold or servers do: that is what it finds.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

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


class Asked(NamedTuple):
    """What came of a link."""

    link: str
    status: int | None
    """None: nobody answered, or nobody asked."""
    said: str
    """Why not."""
    finding: Finding | None


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
        asked, left_out = await self.ask(links)
        findings = [one.finding for one in asked if one.finding is not None]
        if left_out:
            findings.append(unasked(len(left_out), len(asked) + len(left_out)))
        return findings

    async def ask(self, links: Sequence[str]) -> tuple[list[Asked], list[str]]:
        """Return what came of links, in their order, and which were left out: there are too many,
        or too slow."""
        # What stands behind # is the reader's own business.
        wanted = list(dict.fromkeys(link.partition("#")[0] for link in links))
        asked = wanted[: self._most]
        found: dict[str, Asked] = {}
        places = trio.CapacityLimiter(self._at_once)

        async def look(link: str) -> None:
            async with places:
                found[link] = await self._look(link)

        with trio.move_on_after(self._within):
            async with trio.open_nursery() as nursery:
                for link in asked:
                    nursery.start_soon(look, link)
        return (
            [found[link] for link in asked if link in found],
            [link for link in wanted if link not in found],
        )

    async def _look(self, link: str) -> Asked:
        try:
            status = await self._poster.head(link, _HEADERS)
        except NotPosted as error:
            if isinstance(error, Refused) or isinstance(error.__cause__, NotPublic):
                said = f"The link {quoted(link)} was not asked: {error}."
                finding = Finding("link-not-asked", "warning", said)
            else:
                said = f"The link {quoted(link)} is dead: {error}."
                finding = Finding("dead-link", "error", said)
            return Asked(link, None, str(error), finding)
        if status < 400 or status in _THERE:
            return Asked(link, status, "", None)
        finding = Finding("dead-link", "error", f"The link {quoted(link)} answers {status}.")
        return Asked(link, status, "", finding)
