"""LMTP (RFC 2033): what differs from SMTP, for a mail server in front that keeps a queue itself.

There is LHLO in place of HELO and EHLO, no STARTTLS and no AUTH, and the end of a message is
answered once for each RCPT that was answered 250, in their order: so the server in front knows who
has the message, and sends it again to the others alone.  Everything else is SMTP's.

Promises: as many replies behind the final dot, or the last chunk, as RCPTs were answered 250, a
repeated one too; 250 for those alone whose copy is durable.

Fails: never by itself.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from relay.accepted import Accepted, Why
from relay.smtp.dialogue import CAPTURED, FULL, OVER, STORED
from relay.smtp.lines import Lines
from relay.smtp.responder import Responder


class Recipients:
    """Those of a session's transaction, who are answered one by one."""

    __slots__ = ("_lines", "_named", "_responder")

    def __init__(self, lines: Lines, responder: Responder) -> None:
        self._lines = lines
        self._responder = responder
        self._named: list[str] = []  # canonical addresses, in the order of their RCPTs

    def __len__(self) -> int:
        """How many replies the end of the message has."""
        return len(self._named)

    def add(self, canonical: str) -> None:
        """A RCPT was answered 250."""
        self._named.append(canonical)

    def forget(self) -> None:
        """The transaction is over."""
        self._named.clear()

    def refuse(self, reply: bytes) -> None:
        """Answer a message that nobody gets."""
        self._responder.refuse(reply)
        self._lines.say(reply * (len(self) - 1))

    def conclude(self, accepted: Accepted, size: int) -> None:
        """Say to each what became of a message of so many bytes."""
        if accepted.error is not None:
            self.refuse(b"451 4.3.0 Try again later\r\n")
            return
        stored = CAPTURED if accepted.captured else STORED
        for canonical in self._named:
            name = accepted.stored.get(canonical)
            if name is not None:
                self._lines.say(stored % str(name).encode())
            elif canonical in accepted.full:
                self._turn_down("over_quota", FULL, canonical)
            else:
                self._turn_down("expired", OVER, canonical)
        if accepted.stored:
            self._responder.kept(size, accepted.stored.values())
        else:
            self._responder.count_refused(rejected=not accepted.full)

    def _turn_down(self, why: Why, reply: str, canonical: str) -> None:
        """Say to one of them that it gets no mail."""
        self._lines.say(self._responder.turn_down(why, reply, [canonical]).encode() + b"\r\n")


def verbs_of(methods: Mapping[str, Any]) -> dict[str, Any]:
    """Return the methods of the verbs of LMTP, of those of SMTP."""
    others = {verb: methods[verb] for verb in methods if verb not in {"HELO", "EHLO", "STARTTLS"}}
    return {"LHLO": methods["EHLO"], **others}
