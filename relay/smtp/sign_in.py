"""AUTH as the server sees it: the mechanisms PLAIN and LOGIN, and a session's attempts.

A mechanism (RFC 4954, 4616) is a generator: it yields challenges, is sent the answers, and returns
user name and password.  Base64 is `decoded`'s.  `Attempts` has the peer asked, and judged by
`relay.smtp.shared.Authenticator`; whether AUTH may come now is the session's business.

Promises: a password is checked when it is its turn (`relay.access.password_checks`), a wrong one
answered late, and the last that a session may say ends it; whoever hangs up meanwhile ends the
session at once.  No reply and no log repeats a name or a password.

Fails: a mechanism with `ValueError`, whose text is a reply, for what it does not allow; `Attempts`
with `SessionOver`, and with `HungUp` (an `OSError`).
"""

from __future__ import annotations

import base64
import binascii
import math
from collections.abc import Callable, Generator
from functools import partial
from typing import cast

from relay.access.password_checks import PasswordLimits, TooManyWrong
from relay.errors import TemporaryFailure
from relay.smtp.lines import Lines, SessionOver
from relay.smtp.responder import Responder
from relay.smtp.shared import Authenticator, WrongLogin
from relay.smtp.waits import Waits

Exchange = Generator[bytes, bytes, tuple[str, str]]

MALFORMED = "501 5.5.2 Malformed answer"
CANCELLED = "501 5.7.0 Authentication cancelled"


def plain() -> Exchange:
    """PLAIN: authorization identity, user name and password, between NULs."""
    parts = (yield b"").split(b"\0")
    if len(parts) != 3:
        raise ValueError(MALFORMED)
    return _text(parts[1]), _text(parts[2])


def login() -> Exchange:
    """LOGIN: one after the other."""
    user = yield b"Username:"
    password = yield b"Password:"
    return _text(user), _text(password)


MECHANISMS = {"PLAIN": plain, "LOGIN": login}


def decoded(line: bytes) -> bytes:
    """Return what the peer answered: base64, `*` to cancel, `=` for nothing at all."""
    if line == b"*":
        raise ValueError(CANCELLED)
    if line == b"=":
        return b""
    try:
        return base64.b64decode(line, validate=True)
    except binascii.Error:
        raise ValueError(MALFORMED) from None


def challenge(text: bytes) -> bytes:
    """Return the line that asks for an answer."""
    return b"334 %b\r\n" % base64.b64encode(text)


def _text(answer: bytes) -> str:
    try:
        text = answer.decode()
    except UnicodeDecodeError:
        raise ValueError(MALFORMED) from None
    if "\0" in text:
        raise ValueError(MALFORMED)
    return text


class Attempts:
    """The attempts of one session to sign in."""

    __slots__ = ("_authenticator", "_lines", "_responder", "_tell", "_waits", "_wrong")

    def __init__(
        self,
        authenticator: Authenticator,
        lines: Lines,
        waits: Waits,
        responder: Responder,
        tell: Callable[[WrongLogin], None],
    ) -> None:
        """`tell` is told of each that was wrong."""
        self._authenticator = authenticator
        self._lines = lines
        self._waits = waits
        self._responder = responder
        self._tell = tell
        self._wrong = 0

    async def make(self, exchange: Exchange, initial: str, until: float) -> object | None:
        """Answer AUTH; return what stands for whoever has signed in, or None.

        `initial`: the answer that came with the command; `until`: when the peer is out of time.
        """
        try:
            user, password = await self._ask(exchange, initial, until)
        except ValueError as error:
            self._responder.reply(str(error))
            return None
        return await self._judge(user, password)

    async def _ask(self, exchange: Exchange, initial: str, until: float) -> tuple[str, str]:
        """Ask for what a mechanism asks for."""
        question = next(exchange)
        answer = initial.encode() if initial else None
        while True:
            if answer is None:
                self._lines.say(challenge(question))
                answer = await self._lines.line(until)
                if answer is None:
                    raise ValueError("500 5.5.6 Line too long")
            try:
                question = exchange.send(decoded(answer))
            except StopIteration as done:
                return cast("tuple[str, str]", done.value)
            answer = None

    async def _judge(self, user: str, password: str) -> object | None:
        authenticator = self._authenticator
        checks = authenticator.password_checks
        self._lines.due = math.inf
        try:
            async with self._waits.pinned() as pinned:
                if checks is None:
                    found = await pinned.run(lambda: authenticator.check(user, password))
                else:
                    with checks.turn(self._responder.host, password) as turn:
                        if not turn.come_nowait():
                            await self._responder.keep_waiting_for(pinned, turn.come)
                        found = await pinned.run(lambda: authenticator.check(user, password))
                        turn.right()
        except TooManyWrong:
            self._responder.say(b"454 4.7.0 Too many wrong passwords, try again later\r\n")
            return None
        except TemporaryFailure:
            self._responder.say(b"454 4.7.0 Try again later\r\n")
            return None
        except WrongLogin as error:
            self._tell(error)
            assert checks is not None, "where any password is good, none is wrong"
            await self._refuse(checks.limits)
            return None
        self._responder.say(b"235 2.7.0 Signed in\r\n")
        return found

    async def _refuse(self, limits: PasswordLimits) -> None:
        self._wrong += 1
        async with self._waits.pinned() as pinned:
            await self._responder.keep_waiting_for(
                pinned, partial(pinned.sleep, limits.wrong_delay)
            )
        if self._wrong >= limits.wrong_in_session:
            raise SessionOver("guesses", "421 4.7.0 Too many wrong passwords; good-bye")
        self._responder.reply(f"535 5.7.8 {self._authenticator.wanted}")
