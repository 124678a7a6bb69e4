"""A session's questions to the operator's filter (`relay.smtp.filtering` says what that may be).

Promises: it gets a session and an envelope of its own, as hooks written for aiosmtpd change them;
what it answers is sent only if it is one reply, of one line.

Fails: a filter that fails, or takes longer than `filter_timeout`, is 451, and said in the log.
"""

from __future__ import annotations

import math
from typing import Any

from aiosmtpd.smtp import Envelope
from aiosmtpd.smtp import Session as Conversation

from relay.errors import TemporaryFailure
from relay.log import get_logger
from relay.smtp.aiosmtpd_shim import NO_LOOP
from relay.smtp.dialogue import Dialogue
from relay.smtp.lines import Lines
from relay.smtp.shared import Filter
from relay.smtp.syntax import foreign_reply
from relay.smtp.waits import Waits

log = get_logger()

_FOR_ORDINARY_MAIL = frozenset({"MAIL", "RCPT", "DATA"})


class Consultation:
    """What one session and the operator's filter say to each other."""

    __slots__ = (
        "_conversation",
        "_dialogue",
        "_filter",
        "_lines",
        "_shown",
        "_shown_session",
        "_timeout",
        "_waits",
    )

    def __init__(
        self,
        filter_: Filter,
        conversation: Conversation,
        dialogue: Dialogue,
        lines: Lines,
        waits: Waits,
        *,
        timeout: float,
    ) -> None:
        """`conversation` and `dialogue`: what the filter is shown; `timeout`: seconds a hook."""
        self._filter = filter_
        self._conversation = conversation
        self._dialogue = dialogue
        self._lines = lines
        self._waits = waits
        self._timeout = timeout
        self._shown_session: Conversation | None = None  # the filter's own, made when it is asked
        self._shown: Envelope | None = None  # likewise, of each transaction

    @property
    def about_all(self) -> bool:
        """Whether it has a hook with which no mail is ordinary."""
        return not _FOR_ORDINARY_MAIL.isdisjoint(self._filter.hooks)

    def forget(self) -> None:
        """The transaction is over."""
        self._shown = None

    def forget_session(self) -> None:
        """What was said before counts no more."""
        self._shown_session = None

    async def ask(self, hook: str, *args: Any, content: bytes | None = None) -> str | None:
        """Return None if the filter agrees or has no such hook, else the reply to give."""
        if hook not in self._filter.hooks:
            return None
        session, envelope = self._show()
        if content is not None:
            envelope.content = envelope.original_content = content
        self._lines.due = math.inf
        answer: object = None
        try:
            async with self._waits.pinned() as pinned:
                with pinned.move_on_after(self._timeout) as deadline:
                    answer = await pinned.run(
                        lambda: self._filter.ask(hook, session, envelope, args)
                    )
            if deadline.cancelled_caught:
                log.warning("smtp.filter_timed_out", hook=hook)
        except TemporaryFailure as error:
            log.warning("smtp.filter_failed", hook=hook, error=str(error))
        reply = foreign_reply(answer)
        if reply is None:
            return "451 4.3.0 Try again later"
        return None if reply[0] == "2" else reply

    def _show(self) -> tuple[Conversation, Envelope]:
        """Bring what the filter sees up to date."""
        transaction = self._dialogue.transaction
        if self._shown_session is None:
            self._shown_session = Conversation(NO_LOOP)
            self._shown_session.peer = self._conversation.peer
        if self._shown is None:
            self._shown = Envelope()
        self._shown_session.host_name = self._conversation.host_name
        self._shown_session.extended_smtp = self._conversation.extended_smtp
        self._shown.mail_from = transaction.mail_from
        self._shown.mail_options = list(transaction.mail_options)
        self._shown.smtp_utf8 = transaction.smtp_utf8
        self._shown.rcpt_tos = transaction.rcpt_tos
        self._shown.rcpt_options = list(transaction.rcpt_options)
        return self._shown_session, self._shown
