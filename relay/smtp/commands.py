"""The commands of an SMTP session, as aiosmtpd's class `SMTP` has them: a method for each verb.

`Commands` is one session between two waits for its peer: `obey` takes one command.  aiosmtpd
answers NOOP, RSET, EXPN, HELP and every MAIL and RCPT that is out of the ordinary; the others are
ours.  What they lead to has rooms of its own: `sign_in` (AUTH), `starttls`, `reception` (DATA
and BDAT), `chaos` (faults on demand), `consultation` (the operator's filter), `submitting` (what a
submission port asks), and `responder`, by which all of them answer.

Promises:
- A command with a bare CR or LF is refused with 500 5.5.2, and never becomes two.
- Nothing that a peer said in clear counts in TLS; no AUTH in clear beyond this machine, but where
  it takes anybody.
- Trouble of ours is 4xx and says nothing about its cause, but for a disk that is nearly full
  (452 4.3.1): at MAIL, by the announced size too, and at the dot.

Fails: with `SessionOver` where what a peer says can only end the session; another exception is for
`relay.smtp.session`, which answers 451.

Why this way: aiosmtpd's parser of addresses forgives what clients really send; what it forgives too
much is refused in `_getaddr`.  tests/smtp/test_aiosmtpd_contract.py holds what is relied upon.
"""

# ruff: noqa: N802 - aiosmtpd finds the method of a command by its verb in capitals

from __future__ import annotations

import re
import socket
import ssl
from collections.abc import Sequence
from typing import Any, cast

from aiosmtpd.smtp import MISSING, SMTP, Envelope, syntax
from aiosmtpd.smtp import Session as Conversation

from relay.accepted import Why
from relay.chance import monotonic
from relay.errors import OverQuota, TemporaryFailure
from relay.log import get_logger
from relay.ports.peers import peer_key
from relay.ports.proxy import is_local
from relay.smtp.aiosmtpd_shim import NO_LOOP, session_attributes
from relay.smtp.chaos import Faults
from relay.smtp.consultation import Consultation
from relay.smtp.dialogue import FULL, RECIPIENT_OK, SENDER_OK, Dialogue
from relay.smtp.dsn import (
    NO_PARAMETERS,
    BadParameter,
    MailParameters,
    RcptParameters,
    take_mail,
    take_rcpt,
)
from relay.smtp.lines import Lines, SessionOver
from relay.smtp.lmtp import Recipients, verbs_of
from relay.smtp.reception import NO_SPACE, Reception, begins_chunk, chunk_without_end, no_space
from relay.smtp.responder import RECIPIENTS_FAULT, SENDERS_FAULT, Responder
from relay.smtp.shared import Shared, WrongLogin, origin_of
from relay.smtp.sign_in import MECHANISMS, Attempts
from relay.smtp.starttls import begin as begin_tls
from relay.smtp.submitting import Submitting
from relay.smtp.syntax import FOREIGN_SIZE, HTTP_VERBS, MAIL, POSTMASTER, RCPT, is_sound
from relay.smtp.waits import Waits

log = get_logger()

_LONGEST_PATH = 330  # bytes with brackets; 64 and 254 are the most of an address (RFC 5321, 4.5.3)

_UNKNOWN = "550 5.1.1 No such mailbox here"
_NO_ADDRESS = "501 5.1.3 This is no address"
_TOO_MANY_RECIPIENTS = "452 4.5.3 Too many recipients"

_SENDER_OK, _RECIPIENT_OK = SENDER_OK[:-2].decode(), RECIPIENT_OK[:-2].decode()

_NOT_BETWEEN_CHUNKS = frozenset({b"MAIL", b"RCPT", b"DATA"})
_AUTH = re.compile(r"AUTH=(?:<>|[!-~]+)", re.IGNORECASE)


def _announced(options: Sequence[str]) -> int:
    """Return the bytes that MAIL says the message has; 0 where it says nothing."""
    return next((int(one[5:]) for one in options if one.startswith("SIZE=")), 0)


def _without_auth(arg: str) -> str:
    """Return the argument of MAIL without AUTH=, which says who wrote to whoever signed in.

    A server with AUTH takes it, and need not believe it (RFC 4954, 5).
    """
    path, end, parameters = arg.partition(">")
    kept = [each for each in parameters.split(" ") if not _AUTH.fullmatch(each)]
    return path + end + " ".join(kept)


class Commands(SMTP):
    """The commands of one session; aiosmtpd's class has the rarest."""

    session: Conversation  # aiosmtpd has it as Optional

    def __init__(self, shared: Shared, sock: socket.socket, waits: Waits, peer: Any) -> None:
        """`sock`, `waits` and `peer`: as `relay.smtp.session.Session` is given them."""
        limits = shared.limits
        vars(self).update(
            session_attributes(
                Commands,
                hostname=shared.hostname,
                max_message_bytes=limits.max_message_bytes,
                command_timeout=limits.command_timeout,
            )
        )
        self.shared = shared
        self.limits = limits
        self.session = conversation = Conversation(NO_LOOP)
        conversation.peer = peer
        self.ending = ""
        """Why the session ends once the command in hand is answered; empty: it goes on."""
        self.parsing = 0.0
        """Seconds that parsing addresses took, since the session set it to nothing."""
        self.lines = lines = Lines(sock, waits, limits)
        self.waits = waits
        self.responder = responder = Responder(
            lines,
            waits,
            shared.misses,
            str(peer[0]),
            submission=shared.submissions is not None,
            note=shared.note_refused,
        )
        self.dialogue = dialogue = Dialogue(shared, conversation, lines.replies, responder.kept)
        dialogue.host = responder.host
        self._attempts: Attempts | None = None  # made with the first AUTH
        self._faults: Faults | None = None
        self._consultation: Consultation | None = None
        self._submitting: Submitting | None = None
        if shared.chaos is not None and is_local(peer):
            self._faults = Faults(shared.chaos, lines, responder)
        if shared.filter is not None:
            self._consultation = Consultation(
                shared.filter,
                conversation,
                dialogue,
                lines,
                waits,
                timeout=limits.filter_timeout,
            )
        if shared.submissions is not None:
            self._submitting = Submitting(
                shared.submissions,
                conversation,
                dialogue,
                lines,
                waits,
                responder,
                store_timeout=limits.store_timeout,
            )
        # Of the MAIL or RCPT in hand; they count once it is obeyed.
        self._mail_parameters: MailParameters = NO_PARAMETERS
        self._rcpt_parameters: RcptParameters | None = None
        self.recipients: Recipients | None = None
        """Those who are answered one by one, in LMTP."""
        if shared.lmtp:
            self.recipients = Recipients(lines, responder)
            self._smtp_methods = verbs_of(self._smtp_methods)
        self.reception = Reception(
            limits,
            dialogue,
            lines,
            waits,
            responder,
            faults=self._faults,
            consultation=self._consultation,
            submitting=self._submitting,
            recipients=self.recipients,
        )
        self.takes_ordinary = (
            self._faults is None
            and self._submitting is None
            and self.recipients is None
            and (self._consultation is None or not self._consultation.about_all)
        )
        """Whether ordinary mail may be left to the dialogue."""

    @property
    def envelope(self) -> Envelope:  # type: ignore[override]  # an attribute there; nobody sets it
        """The transaction, with the attributes that aiosmtpd's code reads and writes."""
        return cast(Envelope, self.dialogue.transaction)

    async def push(self, status: str) -> None:  # type: ignore[override]  # aiosmtpd: or bytes
        """Queue a reply; it leaves when the session next waits for its peer."""
        self.responder.reply(status)

    async def handle_exception(self, error: Exception) -> str:
        """Log what nobody expected and answer 451, which names no cause."""
        log.error("smtp.failed", peer=self.responder.host, exc_info=error)
        return "451 4.3.0 Internal error, try again later"

    # ------------------------------------------------------------------------ any command

    async def obey(self, line: bytes) -> None:
        """Obey a command, which has come without its CRLF."""
        if self.reception.suspect and line.upper() != b"QUIT":
            farewell = "421 4.7.0 Commands followed a malformed message; good-bye"
            raise SessionOver("smuggling", farewell)
        if self._submitting is not None:
            await self._submitting.look_again()
        if self.reception.chunks is not None and line[:4].upper() in _NOT_BETWEEN_CHUNKS:
            self.responder.say(b"503 5.5.1 Error: a message is coming by BDAT\r\n")
            return
        # Ordinary MAIL and RCPT where there is a filter to ask; what is out of the ordinary goes on
        # below, at eighteen and eight times the cost (relay/smtp/syntax.py).
        if self.envelope.mail_from is not None:
            if (rcpt := RCPT.fullmatch(line)) is not None:
                self.responder.reply(await self._rcpt(rcpt[1].decode(), []))
                return
        elif (mail := MAIL.fullmatch(line)) is not None and self._may_begin(mail[2]):
            await self._begin(*mail.groups())
            return
        try:
            text = line.decode()
        except UnicodeDecodeError:
            text = "\x00"
        if not text.isprintable():
            self._refuse_bytes(line)
            return
        verb, _, argument = text.partition(" ")
        verb = verb.upper()
        method = self._smtp_methods.get(verb)
        if verb == "AUTH" and self._may_sign_in:
            await self._auth(argument)
        elif method is None:
            if begins_chunk(line):
                raise chunk_without_end()
            self._refuse_verb(verb)
        else:
            await method(self, argument.strip() or None)

    def _refuse_bytes(self, line: bytes) -> None:
        """Refuse a command with a bare CR or LF, a control byte, or what is not UTF-8."""
        verb = line[:5].upper()
        if begins_chunk(line):
            raise chunk_without_end()
        if b"\r" in line or b"\n" in line:
            self.responder.say(b"500 5.5.2 Bare CR or LF in a command\r\n")
        elif verb == b"MAIL ":
            self.responder.say(b"501 5.1.7 Bytes that no address may hold\r\n")
        elif verb == b"RCPT ":
            self.responder.say(b"501 5.1.3 Bytes that no address may hold\r\n")
        else:
            self.responder.say(b"500 5.5.2 Bytes that no command may hold\r\n")

    def _refuse_verb(self, verb: str) -> None:
        """Answer what is no command here.  Its text is not repeated: it may be a password."""
        if verb in HTTP_VERBS:
            raise SessionOver("http", "421 4.7.0 This is not a web server")
        self.responder.unknown += 1
        self.responder.say(b"500 5.5.1 Command not recognized\r\n")

    def forget_transaction(self) -> None:
        """Begin anew: the message was answered, or the peer wishes it."""
        self.dialogue.reset()
        self.reception.chunks = None
        if self._faults is not None:
            self._faults.forget()
        if self._consultation is not None:
            self._consultation.forget()
        if self.recipients is not None:
            self.recipients.forget()

    _set_post_data_state = forget_transaction  # what aiosmtpd's RSET calls

    async def _consult(self, hook: str, *args: Any) -> str | None:
        """Return the reply with which the operator's filter refuses, or None."""
        return None if self._consultation is None else await self._consultation.ask(hook, *args)

    # ------------------------------------------------------------------------ who is there

    @syntax("EHLO hostname")
    async def smtp_EHLO(self, hostname: str | None) -> None:
        """Greet, list the extensions, and forget any transaction."""
        self.responder.idle_commands += 1
        if not hostname:
            await self.push(f"501 Syntax: {'LHLO' if self.shared.lmtp else 'EHLO'} hostname")
            return
        self.forget_transaction()
        self.session.extended_smtp = True
        offers = self.shared.offers(
            starttls=self._may_start_tls,
            sign_in=self._may_sign_in,
            require_tls=self._may_require_tls,
        )
        refusal = await self._consult("EHLO", hostname, offers)
        if refusal is not None:
            await self.push(refusal)
            return
        self._greet(hostname)
        self.lines.say("".join(f"{line}\r\n" for line in offers).encode())

    @syntax("HELO hostname")
    async def smtp_HELO(self, hostname: str | None) -> None:
        """As EHLO, without extensions."""
        self.responder.idle_commands += 1
        if not hostname:
            await self.push("501 Syntax: HELO hostname")
            return
        refusal = await self._consult("HELO", hostname)
        if refusal is not None:
            await self.push(refusal)
            return
        self.forget_transaction()
        self.session.extended_smtp = False
        self._greet(hostname)
        self.lines.say(b"250 %b\r\n" % self.shared.hostname.encode())

    def _greet(self, hostname: str) -> None:
        """Take note of what the peer calls itself."""
        self.session.host_name = hostname
        self.dialogue.origin = origin_of(self.responder.host, hostname)

    @property
    def _may_sign_in(self) -> bool:
        """Whether AUTH is offered: not in clear beyond this machine, where there could be TLS.

        Where there could not, neither, unless any password is good: it opens nothing.
        """
        authenticator = self.shared.authenticator
        if authenticator is None:
            return False
        if self.lines.encrypted or is_local(self.session.peer):
            return True
        return authenticator.password_checks is None and self.shared.certificate is None

    async def _auth(self, argument: str) -> None:
        """Sign the peer in (RFC 4954)."""
        self.responder.idle_commands += 1
        assert self.shared.authenticator is not None
        name, _, initial = argument.strip().partition(" ")
        mechanism = MECHANISMS.get(name.upper())
        if mechanism is None:
            await self.push("504 5.5.4 Mechanisms are PLAIN and LOGIN")
        elif not self.session.extended_smtp:
            await self.push("503 5.5.1 Error: send EHLO first")
        elif self.dialogue.login is not None or self.envelope.mail_from is not None:
            await self.push("503 5.5.1 Error: signed in already, or in a transaction")
        else:
            if self._attempts is None:
                self._attempts = Attempts(
                    self.shared.authenticator,
                    self.lines,
                    self.waits,
                    self.responder,
                    self._wrong_login,
                )
            login = await self._attempts.make(
                mechanism(), initial.strip(), self.dialogue.transaction.until
            )
            if login is not None:
                self.dialogue.login = login
                self.responder.login = (isinstance(login, str) and login) or None
                self.session.authenticated = True

    def _wrong_login(self, error: WrongLogin) -> None:
        """Say why in the log, which those who guess cannot fill."""
        host = self.responder.host
        if self.shared.wrong_logins.ready((peer_key(host), error.reason)):
            log.info("smtp.login_refused", peer=host, reason=error.reason, **error.facts)

    @property
    def _may_start_tls(self) -> bool:
        return self.shared.certificate is not None and not self.lines.encrypted

    @property
    def _may_require_tls(self) -> bool:
        """Whether REQUIRETLS is offered: of mail that leaves, in TLS (RFC 8689, 2)."""
        return self._submitting is not None and self.lines.encrypted

    async def begin_in_tls(self) -> None:
        """Shake hands before anything is said."""
        certificate = self.shared.certificate
        if certificate is None or certificate.context is None:
            raise SessionOver("tls")
        await self._shake_hands(certificate.context)

    async def _shake_hands(self, context: ssl.SSLContext) -> None:
        now = self.waits.now()
        self.lines.await_command(now, now + self.limits.handshake_timeout)
        key = peer_key(self.responder.host)
        turn = self.shared.handshakes.turn
        await begin_tls(self.lines, self.waits, context, lambda first: turn(key, begins=first))

    @syntax("STARTTLS")
    async def smtp_STARTTLS(self, arg: str | None) -> None:
        """Go on in TLS, as if nothing had been said before (RFC 3207)."""
        self.responder.idle_commands += 1
        certificate = self.shared.certificate
        if certificate is None:
            self.responder.say(b"502 5.5.1 STARTTLS is not offered\r\n")
        elif arg:
            await self.push("501 Syntax: STARTTLS")
        elif self.lines.encrypted:
            self.responder.say(b"503 5.5.1 Error: TLS has begun already\r\n")
        elif not self.session.extended_smtp:
            self.responder.say(b"503 5.5.1 Error: send EHLO first\r\n")
        elif self.envelope.mail_from is not None:
            self.responder.say(b"503 5.5.1 Error: within a transaction\r\n")
        elif (context := certificate.context) is None:
            self.responder.say(b"454 4.7.0 TLS is not available now, try again later\r\n")
        else:
            self.responder.say(b"220 2.0.0 Go ahead\r\n")
            await self._shake_hands(context)
            self.session.host_name = None
            self.session.extended_smtp = False
            self.session.authenticated = False
            self.dialogue.login = self.responder.login = None
            if self._consultation is not None:
                self._consultation.forget_session()
            self.forget_transaction()

    @syntax("QUIT")
    async def smtp_QUIT(self, arg: str | None) -> None:
        """End, once this is answered."""
        if arg:
            await self.push("501 Syntax: QUIT")
            return
        await self.push("221 Bye")
        self.ending = "quit"

    @syntax("NOOP [ignored]")
    async def smtp_NOOP(self, arg: str | None) -> None:
        """Do nothing, a bounded number of times."""
        self.responder.idle_commands += 1
        await super().smtp_NOOP(arg or "")

    @syntax("RSET")
    async def smtp_RSET(self, arg: str | None) -> None:
        """Forget the transaction."""
        self.responder.idle_commands += 1
        await super().smtp_RSET(arg or "")

    @syntax("HELP [command]")
    async def smtp_HELP(self, arg: str | None) -> None:
        """List the commands."""
        self.responder.idle_commands += 1
        await super().smtp_HELP(arg or "")

    @syntax("VRFY <address>")
    async def smtp_VRFY(self, arg: str | None) -> None:
        """Tell nobody who lives here."""
        self.responder.idle_commands += 1
        await self.push("252 2.5.2 Send some mail and see" if arg else "501 Syntax: VRFY <address>")

    @syntax("EXPN <list>")
    async def smtp_EXPN(self, arg: str | None) -> None:
        """There are no lists."""
        self.responder.idle_commands += 1
        await super().smtp_EXPN(arg or "")

    # ------------------------------------------------------------------------ transactions

    @syntax("MAIL FROM: <address>", extended=" [SP <mail-parameters>]")
    async def smtp_MAIL(self, arg: str | None) -> None:
        """Begin a transaction."""
        if arg and self.shared.authenticator is not None:
            arg = _without_auth(arg)
        if arg and not arg.isascii() and "SMTPUTF8" not in arg.upper().split():
            self.responder.say(b"553 5.6.7 An address outside ASCII needs SMTPUTF8\r\n")
            return
        if arg and FOREIGN_SIZE.search(arg):
            await self.push("501 Syntax: MAIL FROM: <address> [SP SIZE=bytes]")
            return
        self.responder.path_code = SENDERS_FAULT
        try:
            if arg and self._submitting is not None and self.session.extended_smtp:
                arg = self._without_dsn(arg)
            await super().smtp_MAIL(arg)
        except BadParameter as error:
            self.responder.reply(str(error))
        finally:
            self.responder.path_code = RECIPIENTS_FAULT
            self._mail_parameters = NO_PARAMETERS

    def _without_dsn(self, arg: str) -> str:
        """Return the argument of MAIL without what it asks for of reports and TLS."""
        path, end, parameters = arg.partition(">")
        self._mail_parameters, others = take_mail(
            parameters.split(" "), dsn=self.shared.dsn, require_tls=self._may_require_tls
        )
        return path + end + " ".join(others)

    def _may_begin(self, parameters: bytes) -> bool:
        """Whether a MAIL that is well-formed may come now: after HELO, or EHLO if it has any."""
        conversation = self.session
        return bool(conversation.host_name) and (not parameters or conversation.extended_smtp)

    async def _begin(self, address: bytes | None, parameters: bytes, size: bytes | None) -> None:
        """Obey an ordinary MAIL."""
        if size and int(size) > self.limits.max_message_bytes:
            self.responder.say(b"552 5.3.4 Message too large\r\n")
            return
        options = parameters.decode().upper().split() if parameters else []
        self.responder.reply(await self._mail(address.decode() if address else "<>", options))

    @syntax("RCPT TO: <address>", extended=" [SP <mail-parameters>]")
    async def smtp_RCPT(self, arg: str | None) -> None:
        """Name one recipient."""
        try:
            if arg and self.shared.dsn and self.session.extended_smtp:
                path, end, parameters = arg.partition(">")
                utf8 = self.dialogue.transaction.smtp_utf8
                self._rcpt_parameters, others = take_rcpt(parameters.split(" "), utf8=utf8)
                arg = path + end + " ".join(others)
            await self._smtp_rcpt(arg)
        except BadParameter as error:
            self.responder.reply(str(error))
        finally:
            self._rcpt_parameters = None

    async def _smtp_rcpt(self, arg: str | None) -> None:
        if arg and self.envelope.mail_from is not None:
            if len(self.dialogue.transaction.recipients) >= self.dialogue.most:
                # Before it is parsed, which may take long.
                self.responder.reply(_TOO_MANY_RECIPIENTS)
                return
            if POSTMASTER.fullmatch(arg):
                await self.push(await self._rcpt(f"postmaster@{self.shared.hostname}", []))
                return
            if not arg.isascii() and not self.envelope.smtp_utf8:
                self.responder.say(b"553 5.6.7 An address outside ASCII needs SMTPUTF8\r\n")
                return
        await super().smtp_RCPT(arg)

    async def _call_handler_hook(self, command: str, *args: Any) -> Any:
        """What aiosmtpd's MAIL and RCPT ask once they have parsed; they reply what this returns."""
        if command == "MAIL":
            return await self._mail(*args)
        if command == "RCPT":
            return await self._rcpt(*args)
        return MISSING

    async def _mail(self, address: str, options: list[str]) -> str:
        announced = _announced(options) if options else 0
        if self.shared.space.short(announced):
            self.responder.idle_commands += 1
            no_space.inc()
            return NO_SPACE
        if self._faults is not None:
            refusal = await self._faults.inject("mail", address)
            if refusal is not None:
                return refusal
        if self._submitting is not None:
            refusal = await self._submitting.begin(address)
            if refusal is not None:
                return refusal
        refusal = await self._consult("MAIL", address, options)
        if refusal is not None:
            return refusal
        self.dialogue.expect(announced)
        self.envelope.mail_from = address
        self.envelope.mail_options.extend(options)
        self.dialogue.transaction.mail_parameters = self._mail_parameters
        self.dialogue.transaction.until = self.waits.now() + self.limits.transaction_timeout
        return _SENDER_OK

    async def _rcpt(self, address: str, options: list[str]) -> str:
        recipients = self.dialogue.transaction.recipients
        if len(recipients) >= self.dialogue.most:
            return _TOO_MANY_RECIPIENTS
        if self._submitting is not None:
            refusal = await self._submitting.name(address)
            if refusal is None:
                self.envelope.rcpt_options.extend(options)
                if self._rcpt_parameters is not None and address not in recipients:
                    self.dialogue.transaction.rcpt_parameters[address] = self._rcpt_parameters
                recipients[address] = address
            return refusal or _RECIPIENT_OK
        try:
            canonical = self.shared.canonical(address)
        except ValueError:
            return _NO_ADDRESS
        if self._faults is not None:
            refusal = await self._faults.inject("rcpt", canonical)
            if refusal is not None:
                return refusal
        if canonical in recipients:
            # Or a transaction would grow as long as it is repeated.
            self.responder.idle_commands += 1
            if self.recipients is not None:
                self.recipients.add(canonical)
            return _RECIPIENT_OK
        try:
            why_not = await self.waits.wait(self.dialogue.find(canonical))
            if why_not is not None:
                return await self._miss(why_not, canonical)
        except OverQuota:
            return self.responder.turn_down("over_quota", FULL, [canonical])
        except TemporaryFailure:
            return "451 4.3.0 Try again later"
        refusal = await self._consult("RCPT", address, options)
        if refusal is not None:
            return self.responder.turn_down("filter", refusal, [canonical])
        self.envelope.rcpt_options.extend(options)
        recipients[canonical] = address
        if self.recipients is not None:
            self.recipients.add(canonical)
        return _RECIPIENT_OK

    async def _miss(self, why: Why, address: str) -> str:
        """Say that a recipient is unknown, whatever it is: late, to whoever names many such."""
        reply = self.responder.turn_down(why, _UNKNOWN, [address])
        await self.responder.slow_down()
        return reply

    # ------------------------------------------------------------------------ the message

    @syntax("DATA")
    async def smtp_DATA(self, arg: str | None) -> None:
        """Have the message come."""
        if not self.dialogue.transaction.recipients:
            missing = "RCPT" if self.envelope.mail_from is not None else "MAIL"
            await self.push(f"503 5.5.1 Error: need {missing} command")
        elif arg:
            await self.push("501 Syntax: DATA")
        else:
            await self.reception.begin()

    @syntax("BDAT octets [LAST]")
    async def smtp_BDAT(self, arg: str | None) -> None:
        """Take a chunk of the message (RFC 3030)."""
        if await self.reception.chunk(arg or ""):
            self.forget_transaction()

    # ------------------------------------------------------------------------ addresses

    def _getaddr(self, arg: str) -> tuple[str | None, str | None]:
        """aiosmtpd's parser, which is the email package's: it forgives and it has faults.

        It takes a millisecond for some addresses, and more than in proportion for longer ones.
        """
        if len(arg) > _LONGEST_PATH and not -1 < arg.rfind(">") <= _LONGEST_PATH:
            return None, None
        began = monotonic()
        try:
            address, rest = super()._getaddr(arg)
        except Exception:
            # RecursionError, IndexError: whatever it trips over, it is no address.
            return None, None
        finally:
            self.parsing += monotonic() - began
        if address and rest is not None and not is_sound(address, arg, rest):
            return None, None
        return address, rest
