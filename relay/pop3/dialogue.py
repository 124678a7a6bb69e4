"""A POP3 session without I/O: its commands, its states, and what is answered (RFC 1939).

A `Dialogue` is given one command line after another and says what is to be done (`Step`): bytes are
a reply; everything else is for the session, which has the database and the socket
(`relay.pop3.server`), and which tells it how that ended.

    state           commands                                                  left by
    AUTHORIZATION   CAPA, STLS, USER, PASS, QUIT                              the right PASS
    TRANSACTION     CAPA, STAT, LIST, UIDL, RETR, TOP, DELE, RSET, NOOP, QUIT QUIT: what is marked
                                                                              is deleted (`Update`)

Promises:
- Nothing is deleted but by a QUIT in the state TRANSACTION.
- USER and PASS are not obeyed where they would travel in clear (`safe`).
- No reply repeats anything of a command.
- Behind STLS nothing counts that was said before it (RFC 2595, 4).
- A command that a mail reader may say is never answered by a `NoCommand`, even if it is refused.

Fails: never; what is no command is a reply that begins with -ERR.

Pure.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from typing import Final, NamedTuple
from uuid import UUID

from relay.pop3.maildrop import Maildrop

_SLICE = 1000  # messages of a listing that are put into words at once

_CAPABILITIES = ("TOP", "UIDL", "RESP-CODES", "AUTH-RESP-CODE", "PIPELINING")


class NoCommand(bytes):
    """A reply to what is no command, malformed, or none of this state: no mail reader says it."""

    __slots__ = ()


_UNKNOWN = NoCommand(b"-ERR Unknown command\r\n")
_SYNTAX = NoCommand(b"-ERR Malformed argument\r\n")
_NOT_NOW = NoCommand(b"-ERR Not in this state\r\n")
_NONE = b"-ERR No such message\r\n"
_IN_CLEAR = b"-ERR [SYS/PERM] Not in clear: begin TLS first\r\n"
_READ_ONLY = b"-ERR [SYS/PERM] This key may not delete\r\n"
_BYE = b"+OK Bye\r\n"

_NUMBER = re.compile(rb"[0-9]{1,9}")


class Authenticate(NamedTuple):
    """Find out who this is; say `welcome` if they may read the mailbox, and refuse them if not."""

    user: str
    password: str


class Retrieve(NamedTuple):
    """Send a message; `lines`: of its body, behind the header; None: all of it."""

    id: UUID
    lines: int | None


class Update(NamedTuple):
    """Delete these messages, answer, and end the session."""

    ids: Sequence[UUID]


class Listing(NamedTuple):
    """Send these parts of a reply."""

    parts: Iterator[bytes]


class StartTls(NamedTuple):
    """Answer, begin TLS, and say `begin_anew`."""


class Quit(NamedTuple):
    """Send this reply, and end the session."""

    reply: bytes


Step = bytes | Authenticate | Retrieve | Update | Listing | StartTls | Quit


class Dialogue:
    """The commands of one session."""

    def __init__(self, *, safe: bool, offers_tls: bool) -> None:
        """`safe`: whether a password may be said now; `offers_tls`: whether STLS is."""
        self.safe = safe
        self._offers_tls = offers_tls
        self._user: str | None = None
        self._may_delete = False
        self.maildrop: Maildrop | None = None
        """What is in the mailbox; None: nobody has signed in."""

    def welcome(self, maildrop: Maildrop, *, may_delete: bool) -> bytes:
        """Go on in the state TRANSACTION; return the reply to PASS."""
        self.maildrop = maildrop
        self._may_delete = may_delete
        return _holds(maildrop) + b"\r\n"

    def begin_anew(self) -> None:
        """TLS has begun."""
        self._user = None
        self.safe = True
        self._offers_tls = False

    def obey(self, line: bytes) -> Step:
        """Say what is to be done for a command, whose line end is not part of `line`."""
        verb, _, argument = line.partition(b" ")
        name = verb.upper()
        if name == b"CAPA":
            return self._capa() if not argument else _SYNTAX
        drop = self.maildrop
        if drop is None:
            return self._authorise(name, argument)
        found = _TRANSACTION.get(name)
        if found is None:
            return _NOT_NOW if name in _AUTHORIZATION else _UNKNOWN
        return found(self, drop, argument)

    def _capa(self) -> bytes:
        offers = [*_CAPABILITIES]
        if self.maildrop is None:
            if self.safe:
                offers.append("USER")
            if self._offers_tls:
                offers.append("STLS")
        offers.append("IMPLEMENTATION Relay")
        return "\r\n".join(["+OK", *offers, ".", ""]).encode()

    # ------------------------------------------------------------------------ AUTHORIZATION

    def _authorise(self, name: bytes, argument: bytes) -> Step:
        if name == b"QUIT":
            return Quit(_BYE) if not argument else _SYNTAX
        if name == b"STLS":
            if argument:
                return _SYNTAX
            return StartTls() if self._offers_tls else _NOT_NOW
        if name not in _AUTHORIZATION:
            return _NOT_NOW if name in _TRANSACTION else _UNKNOWN
        if not self.safe:
            return _IN_CLEAR
        text = _text(argument)
        if not text:
            return _SYNTAX
        if name == b"USER":
            self._user = text
            return b"+OK\r\n"
        user, self._user = self._user, None
        return b"-ERR USER comes first\r\n" if user is None else Authenticate(user, text)

    # ------------------------------------------------------------------------ TRANSACTION

    def _stat(self, drop: Maildrop, argument: bytes) -> Step:
        return b"+OK %d %d\r\n" % (drop.count, drop.octets) if not argument else _SYNTAX

    def _list(self, drop: Maildrop, argument: bytes) -> Step:
        def line(number: int) -> bytes:
            return b"%d %d" % (number, drop.size(number))

        return _listed(drop, argument, line)

    def _uidl(self, drop: Maildrop, argument: bytes) -> Step:
        def line(number: int) -> bytes:
            return b"%d %b" % (number, str(drop.id(number)).encode())

        return _listed(drop, argument, line)

    def _retr(self, drop: Maildrop, argument: bytes) -> Step:
        number = _number(argument)
        if number is None:
            return _SYNTAX
        return Retrieve(drop.id(number), None) if drop.holds(number) else _NONE

    def _top(self, drop: Maildrop, argument: bytes) -> Step:
        first, _, second = argument.partition(b" ")
        number, lines = _number(first), _number(second)
        if number is None or lines is None:
            return _SYNTAX
        return Retrieve(drop.id(number), lines) if drop.holds(number) else _NONE

    def _dele(self, drop: Maildrop, argument: bytes) -> Step:
        number = _number(argument)
        if number is None:
            return _SYNTAX
        if not drop.holds(number):
            return _NONE
        if not self._may_delete:
            return _READ_ONLY
        drop.delete(number)
        return b"+OK Marked\r\n"

    def _rset(self, drop: Maildrop, argument: bytes) -> Step:
        if argument:
            return _SYNTAX
        drop.reset()
        return _holds(drop) + b"\r\n"

    def _noop(self, drop: Maildrop, argument: bytes) -> Step:
        return b"+OK\r\n" if not argument else _SYNTAX

    def _quit(self, drop: Maildrop, argument: bytes) -> Step:
        if argument:
            return _SYNTAX
        ids = drop.deleted()
        return Update(ids) if ids else Quit(_BYE)


_AUTHORIZATION: Final = frozenset({b"USER", b"PASS", b"STLS"})
_TRANSACTION: Final[dict[bytes, Callable[[Dialogue, Maildrop, bytes], Step]]] = {
    b"STAT": Dialogue._stat,
    b"LIST": Dialogue._list,
    b"UIDL": Dialogue._uidl,
    b"RETR": Dialogue._retr,
    b"TOP": Dialogue._top,
    b"DELE": Dialogue._dele,
    b"RSET": Dialogue._rset,
    b"NOOP": Dialogue._noop,
    b"QUIT": Dialogue._quit,
}


def _listed(drop: Maildrop, argument: bytes, line: Callable[[int], bytes]) -> Step:
    """What LIST and UIDL answer: a line for one message, or for all."""
    if argument:
        number = _number(argument)
        if number is None:
            return _SYNTAX
        return b"+OK " + line(number) + b"\r\n" if drop.holds(number) else _NONE

    def parts() -> Iterator[bytes]:
        lines = [_holds(drop)]
        for number in drop.numbers():
            lines.append(line(number))
            if len(lines) >= _SLICE:
                yield b"\r\n".join([*lines, b""])
                lines.clear()
        yield b"\r\n".join([*lines, b".", b""])

    return Listing(parts())


def _holds(drop: Maildrop) -> bytes:
    return b"+OK %d messages, %d octets" % (drop.count, drop.octets)


def _number(argument: bytes) -> int | None:
    return int(argument) if _NUMBER.fullmatch(argument) else None


def _text(argument: bytes) -> str:
    """What a user or a password says; empty where it holds what neither may."""
    try:
        text = argument.decode()
    except UnicodeDecodeError:
        return ""
    return text if text.isprintable() else ""
