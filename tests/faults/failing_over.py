"""Relays that take mail while their database fails over, and what they promised meanwhile.

`Posting` sends over several connections to each of several relays, again and again: a new message
after each answer, a new connection after each that broke, as busy clients do.  What was answered
250, by whom and when, is kept; `lost` looks for it in the server that is left.
"""

from __future__ import annotations

import itertools
import smtplib
import threading
import time
from collections.abc import Sequence
from typing import NamedTuple

import psycopg

from tests.eventually import eventually_sync
from tests.relay_process import RelayProcess

CONNECTIONS = 4
"""To each relay."""

_PATIENCE = 60.0  # s; for an answer, a fifth of what RFC 5321 asks of clients
_PAUSE = 0.02  # s; before the next try after a refusal


class Accepted(NamedTuple):
    """A message that was answered 250: its subject, the relay's number, and when."""

    subject: str
    relay: int
    at: float


class Gap(NamedTuple):
    """Two answers of one relay with none in between."""

    last: float
    next: float

    @property
    def seconds(self) -> float:
        """How long it is."""
        return self.next - self.last


class Posting:
    """Use it as a context manager: it sends until the block ends.  Times are monotonic."""

    def __init__(self, relays: Sequence[RelayProcess], address: str) -> None:
        self.accepted: list[Accepted] = []
        self.refused = 0
        """How often a message was answered otherwise, or not at all."""
        self._relays = relays
        self._address = address
        self._numbers = itertools.count()
        self._stop = threading.Event()
        self._threads = [
            threading.Thread(target=self._post, args=(number,), daemon=True)
            for number in range(len(relays))
            for _ in range(CONNECTIONS)
        ]

    def __enter__(self) -> Posting:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join()

    def _post(self, number: int) -> None:
        while not self._stop.is_set():
            try:
                with smtplib.SMTP(*self._relays[number].smtp, timeout=_PATIENCE) as client:
                    while not self._stop.is_set():
                        self._post_one(client, number)
            except (OSError, smtplib.SMTPException):
                self.refused += 1
                time.sleep(_PAUSE)

    def _post_one(self, client: smtplib.SMTP, number: int) -> None:
        subject = f"post-{next(self._numbers)}"
        letter = f"Subject: {subject}\r\n\r\nhello\r\n"
        try:
            client.sendmail("a@shop.example", [self._address], letter)
        except (smtplib.SMTPResponseException, smtplib.SMTPRecipientsRefused):
            self.refused += 1
            client.rset()
            time.sleep(_PAUSE)
        else:
            self.accepted.append(Accepted(subject, number, time.monotonic()))

    def resume(self, within: float) -> None:
        """Wait until each relay has accepted mail that it is sent from now on."""
        now = time.monotonic()
        for number in range(len(self._relays)):
            eventually_sync(
                lambda number=number: any(  # type: ignore[misc]
                    one.at > now for one in self.accepted[::-1] if one.relay == number
                ),
                f"relay {number} accepts mail again",
                within=within,
            )

    def firsts(self, moment: float) -> list[float]:
        """Of each relay, when it answered 250 for the first time from that moment on."""
        return [
            min(one.at for one in self.accepted if one.relay == number and one.at >= moment)
            for number in range(len(self._relays))
        ]

    def gaps(self) -> list[Gap]:
        """Of each relay the longest time without a 250 between two."""
        found = []
        for number in range(len(self._relays)):
            times = sorted(one.at for one in self.accepted if one.relay == number)
            found.append(
                max(itertools.starmap(Gap, itertools.pairwise(times)), key=lambda gap: gap.seconds)
            )
        return found


def stored(dsn: str) -> set[str]:
    """The subjects of all messages that a server has."""
    with psycopg.connect(dsn) as sql:
        rows = sql.execute(
            """
            SELECT split_part(split_part(convert_from(raw_email, 'UTF8'), E'\\r', 1), ': ', 2)
            FROM relay.messages
            """
        ).fetchall()
    return {subject for (subject,) in rows}


def lost(posting: Posting, dsn: str) -> set[str]:
    """What was answered 250 and is not in that server."""
    return {one.subject for one in posting.accepted} - stored(dsn)
