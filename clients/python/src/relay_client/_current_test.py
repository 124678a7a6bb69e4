"""What the pytest plug-in has the client know of the test that runs.

A process runs one test at a time, and an inbox that a test makes itself is handed no fixture: so
this is one object for all.  The plug-in says when a test begins and ends; in between inboxes add
themselves, and reading and ending them takes from the time that there is for it.  Outside of a test
nothing is known: no login, no inboxes to be reported of, and no time that all share.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from relay_client._mailboxes import InboxHandle

ALL_CLOSE_WITHIN = 5.0
"""Seconds that all inboxes of a test may take in vain to end, where it has several."""


class Opened(Protocol):
    """Either client, as far as it says where its relay is."""

    url: str
    token: str | None


class CurrentTest:
    """The test that runs."""

    login: str | None
    """As whom its application signs in."""
    inboxes: dict[InboxHandle, Opened] | None
    """Those that it has made, each with its client; None where nobody reports of them."""
    reads_within: float
    """Seconds that are left for reading what they have, if it fails."""
    closes_within: float
    """Seconds that are left for ending them in vain."""

    def __init__(self) -> None:
        self.end()

    def begin(self, login: str, *, reports: bool, reads_within: float) -> None:
        """Know a test that begins; `reports`: whether its inboxes are reported of, if it fails."""
        self.login = login
        self.inboxes = {} if reports else None
        self.reads_within = reads_within
        self.closes_within = ALL_CLOSE_WITHIN

    def end(self) -> None:
        """Forget it."""
        self.login = self.inboxes = None
        self.reads_within, self.closes_within = 0.0, math.inf

    def made(self, handle: InboxHandle, relay: Opened) -> None:
        """Remember an inbox for the report of the test."""
        if self.inboxes is not None:
            self.inboxes[handle] = relay

    def reported(self) -> dict[InboxHandle, Opened]:
        """Return the inboxes that are to be reported of, once."""
        made, self.inboxes = self.inboxes or {}, {}
        return made


CURRENT_TEST = CurrentTest()
