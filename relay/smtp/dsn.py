"""Parameters of MAIL and RCPT by which a client asks for reports (DSN) and for TLS.

RET and ENVID of MAIL, NOTIFY and ORCPT of RCPT (RFC 3461, with the addresses of RFC 6533), and
REQUIRETLS of MAIL (RFC 8689): read from commands by `take_mail` and `take_rcpt`, written into them
by `Dsn`.

Promises
- A parameter is read as RFC 3461 allows it and no wider: once, within its length, in xtext.  Its
  text is printable, so that no part of it can become a header field or a command.
- Parameters are written in ASCII, whatever was read.

Fails with `BadParameter`, which is 501.  Pure.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from enum import IntFlag
from typing import Final, NamedTuple

from relay.errors import PermanentFailure

MAX_ENVID: Final = 100
"""Characters of an ENVID, as RFC 3461, 4.4 has it."""
MAX_ORCPT: Final = 500
"""Characters of an ORCPT, as RFC 3461, 4.2 has it."""


class BadParameter(PermanentFailure):
    """A parameter is not what its RFC says; the text is the reply."""


class Notify(IntFlag):
    """Of what a submitter wants to be told; as a number, `relay.outbound_letters.notify`."""

    NEVER = 0
    SUCCESS = 1
    FAILURE = 2
    DELAY = 4
    UNSAID = 8
    """Added where the client did not say: then nobody else is told what it wants."""


DEFAULT: Final = Notify.FAILURE | Notify.DELAY | Notify.UNSAID
"""A client that sends no NOTIFY is told of failures and of delays."""


class MailParameters(NamedTuple):
    """The parameters of MAIL; `envid` in xtext."""

    ret: str | None = None
    envid: str | None = None
    require_tls: bool = False


NO_PARAMETERS: Final = MailParameters()


class RcptParameters(NamedTuple):
    """The parameters of RCPT; `orcpt` as `type;xtext`."""

    notify: Notify = DEFAULT
    orcpt: str | None = None


NOTHING_SAID: Final = RcptParameters()

_HEX = r"\+[0-9A-F]{2}"
_XTEXT = re.compile(rf"(?:[!-*,-<>-~]|{_HEX})+")
_ENCODED = re.compile(r"\+([0-9A-F]{2})")
_ATOM = re.compile(r"[A-Za-z0-9!#$%&'*+\-/=?^_`{|}~]+")
_UNICODE = re.compile(r"\\x\{([0-9A-Fa-f]{2,6})\}")

_BAD_RET = "501 5.5.4 Syntax: RET=FULL or RET=HDRS, once"
_BAD_ENVID = f"501 5.5.4 Syntax: ENVID=xtext, at most {MAX_ENVID} characters, once"
_BAD_NOTIFY = "501 5.5.4 Syntax: NOTIFY=NEVER, or some of SUCCESS,FAILURE,DELAY, once"
_BAD_ORCPT = f"501 5.5.4 Syntax: ORCPT=type;xtext, at most {MAX_ORCPT} characters, once"
_BAD_REQUIRETLS = "501 5.5.4 Syntax: REQUIRETLS, without a value, once"


def take_mail(
    parameters: Sequence[str], *, dsn: bool, require_tls: bool
) -> tuple[MailParameters, list[str]]:
    """Read the parameters of MAIL; returns also those that are none of these.

    `dsn`, `require_tls`: whether that was offered; else its parameters are none of these.
    """
    ret = envid = None
    tls = False
    others: list[str] = []
    for parameter in parameters:
        name, given, value = parameter.partition("=")
        name = name.upper()
        if name == "RET" and dsn:
            if ret is not None or value.upper() not in {"FULL", "HDRS"}:
                raise BadParameter(_BAD_RET)
            ret = value.upper()
        elif name == "ENVID" and dsn:
            if envid is not None or len(value) > MAX_ENVID or not _is_xtext(value):
                raise BadParameter(_BAD_ENVID)
            envid = value
        elif name == "REQUIRETLS" and require_tls:
            if tls or given:
                raise BadParameter(_BAD_REQUIRETLS)
            tls = True
        else:
            others.append(parameter)
    return MailParameters(ret, envid, tls), others


def take_rcpt(parameters: Sequence[str], *, utf8: bool) -> tuple[RcptParameters, list[str]]:
    """Read the parameters of RCPT likewise; `utf8`: MAIL said SMTPUTF8."""
    notify: Notify | None = None
    orcpt: str | None = None
    others: list[str] = []
    for parameter in parameters:
        name, _, value = parameter.partition("=")
        name = name.upper()
        if name == "NOTIFY":
            if notify is not None:
                raise BadParameter(_BAD_NOTIFY)
            notify = _notify(value)
        elif name == "ORCPT":
            if orcpt is not None:
                raise BadParameter(_BAD_ORCPT)
            orcpt = _orcpt(value, utf8=utf8)
        else:
            others.append(parameter)
    return RcptParameters(DEFAULT if notify is None else notify, orcpt), others


def _notify(value: str) -> Notify:
    words = value.upper().split(",")
    if words == ["NEVER"]:
        return Notify.NEVER
    if len(set(words)) < len(words) or not set(words) <= {"SUCCESS", "FAILURE", "DELAY"}:
        raise BadParameter(_BAD_NOTIFY)
    found = Notify.NEVER
    for word in words:
        found |= Notify[word]
    return found


def _orcpt(value: str, *, utf8: bool) -> str:
    kind, _, address = value.partition(";")
    if kind.lower() == "utf-8":
        if not utf8 and not address.isascii():
            raise BadParameter(_BAD_ORCPT)
        address = "".join(
            character if character.isascii() else rf"\x{{{ord(character):X}}}"
            for character in address
        )
        value = f"{kind};{address}"
        if (found := original_recipient(value)) is None or not found[1].isprintable():
            raise BadParameter(_BAD_ORCPT)
    if len(value) > MAX_ORCPT or not _ATOM.fullmatch(kind) or not _is_xtext(address):
        raise BadParameter(_BAD_ORCPT)
    return value


def _is_xtext(value: str) -> bool:
    """Whether a value is xtext of printable ASCII."""
    return _XTEXT.fullmatch(value) is not None and from_xtext(value).isprintable()


def from_xtext(value: str) -> str:
    """Return the text of xtext; beyond ASCII, which is no xtext of ours, a control character."""

    def spelt(found: re.Match[str]) -> str:
        code = int(found[1], 16)
        return chr(code) if code < 0x7F else "\x7f"

    return _ENCODED.sub(spelt, value)


def to_xtext(text: str) -> str:
    """Spell ASCII in xtext."""
    return "".join(
        character if "!" <= character <= "~" and character not in "+=" else f"+{ord(character):02X}"
        for character in text
    )


def original_recipient(orcpt: str) -> tuple[str, str] | None:
    """Return the type and the address that an ORCPT says; None: it spells none."""
    kind, _, address = orcpt.partition(";")
    address = from_xtext(address)
    if kind.lower() == "utf-8":
        codes = [int(code, 16) for code in _UNICODE.findall(address)]
        if any(code > 0x10FFFF or 0xD800 <= code < 0xE000 for code in codes):
            return None
        address = _UNICODE.sub(lambda found: chr(int(found[1], 16)), address)
    return kind, address


class Dsn(NamedTuple):
    """The parameters for the next server, one of `rcpt` for each recipient."""

    mail: MailParameters
    rcpt: tuple[RcptParameters, ...]

    def of_mail(self) -> bytes:
        """The parameters behind MAIL, each with a space in front."""
        ret, envid, _ = self.mail
        return (
            (f" RET={ret}" if ret else "") + (f" ENVID={envid}" if envid else "")
        ).encode("ascii")  # fmt: skip

    def of_rcpt(self, place: int) -> bytes:
        """The parameters behind a RCPT."""
        notify, orcpt = self.rcpt[place]
        said = ""
        if not notify & Notify.UNSAID:
            words = [each.name for each in _WORDS if notify & each]
            said = f" NOTIFY={','.join(filter(None, words)) or 'NEVER'}"
        return (said + (f" ORCPT={orcpt}" if orcpt else "")).encode("ascii")

    def returning_here(self) -> Dsn:
        """Return the parameters to use with a return path of the relay's own.

        FAILURE is always asked for, unless nothing was: the relay learns of bounces by it.  SUCCESS
        never is: such a report would come to the return path, where only bounces are read, and the
        relay reports the delivery to the submitter itself.
        """
        return Dsn(
            self.mail, tuple(each._replace(notify=_returning(each.notify)) for each in self.rcpt)
        )


_WORDS = (Notify.SUCCESS, Notify.FAILURE, Notify.DELAY)


def _returning(notify: Notify) -> Notify:
    if not notify or notify & Notify.UNSAID:
        return notify
    return Notify.FAILURE | (notify & Notify.DELAY)
