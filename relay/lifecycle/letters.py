"""Letters, the mail that accounts get: from a token to a message for the outbound queue.

Each letter has three templates (Jinja2): `activation.subject`, `.txt` and `.html`, and the same
for `recovery`.  A directory of one's own replaces any of them; files that begin with `_` are for
including.  They may use

    login, email    the account's
    link            the page that takes the token
    token, code     what the page needs, for those who have a page of their own
    minutes         how long the token is still good
    subject         in .txt and .html

Promises
- HTML is autoescaped; a login is one line in every template, so an account cannot write
  paragraphs into a letter to somebody else.
- What is wrong with a template is a `ConfigError` at the start that names the file: syntax, an
  unknown variable, a body without its token, a recovery without its code, a file that no letter
  uses (a misspelt name would be the built-in letter, silently).

Fails with `Unwritable` for an account whose letter cannot be written: its address is not one that
mail can have, or a template fails on it.  Pure, but for reading the templates.
"""

from __future__ import annotations

import difflib
import unicodedata
from pathlib import Path
from urllib.parse import quote

import jinja2

from relay.errors import ConfigError, PermanentFailure
from relay.lifecycle.tokens import TOKEN_LENGTH, Action
from relay.outbound.composing.message import (
    Address,
    MalformedMessage,
    Message,
    check_text,
    parse_address,
)
from relay.settings import Settings

BUILT_IN = Path(__file__).with_name("templates")

_PARTS = ("subject", "txt", "html")
_NAMES = {Action.ACTIVATION: "activation", Action.PASSWORD_RECOVERY: "recovery"}
# Recovery is asked for by somebody who waits in front of the screen.
_PRIORITIES = {Action.ACTIVATION: "normal", Action.PASSWORD_RECOVERY: "high"}
_FILES = tuple(f"{name}.{part}" for name in _NAMES.values() for part in _PARTS)
_HEADERS = {"Auto-Submitted": "auto-generated"}  # RFC 3834: no holiday notice answers this

# What the expressions of a template may raise.
_TEMPLATE_ERRORS = (jinja2.TemplateError, TypeError, ValueError, LookupError, ArithmeticError)

_SAMPLE_TOKEN = "A" * TOKEN_LENGTH
_SAMPLE_CODE = "90817"


class Unwritable(PermanentFailure):
    """A token can have no letter; the reason holds no personal data."""


class _TemplateFails(Exception):
    """The template `file` cannot be rendered; its cause says why."""

    def __init__(self, file: str) -> None:
        super().__init__(file)
        self.file = file


class Letters:
    """Writes letters from `sender` whose links begin with `base` (an http or https address)."""

    def __init__(self, *, sender: str, base: str, directory: Path | None = None) -> None:
        """Read and try all templates, those of `directory` before the built-in ones."""
        self._sender = _address(sender)
        self._base = base.rstrip("/")
        places = [BUILT_IN]
        if directory is not None:
            _check_names(directory)
            places.insert(0, directory)
        environment = jinja2.Environment(
            loader=jinja2.FileSystemLoader(places),
            autoescape=jinja2.select_autoescape(enabled_extensions=("html",), default=False),
            undefined=jinja2.StrictUndefined,
            trim_blocks=True,
            lstrip_blocks=True,
            keep_trailing_newline=True,
            auto_reload=False,
        )
        self._templates: dict[str, jinja2.Template] = {}
        for file in _FILES:
            self._templates[file] = _load(environment, file)
        for action in _NAMES:
            self._try(action)

    def write(
        self, *, action: Action, email: str, login: str, token: str, code: str, minutes: int
    ) -> Message:
        """Return the letter of one token, which is good for `minutes` more."""
        try:
            return self._write(action, email, login, token, code, minutes)
        except MalformedMessage as error:
            raise Unwritable(str(error)) from error
        except _TemplateFails as error:
            # The file may be named, what it was given may not.
            kind = type(error.__cause__).__name__
            raise Unwritable(f"the template {error.file} fails on it ({kind})") from error

    def _write(
        self, action: Action, email: str, login: str, token: str, code: str, minutes: int
    ) -> Message:
        recipient = Address(parse_address(email, "email").address)
        name = _NAMES[action]
        values: dict[str, object] = {
            "login": _one_line(login),
            "email": recipient.address,
            "link": self.link(action, token),
            "token": token,
            "code": code,
            "minutes": minutes,
        }
        values["subject"] = subject = _one_line(self._render(f"{name}.subject", values))
        return Message(
            sender=self._sender,
            recipients=(recipient,),
            subject=check_text(subject, "subject"),
            text=self._render(f"{name}.txt", values),
            html=self._render(f"{name}.html", values),
            headers=_HEADERS,
            priority=_PRIORITIES[action],
        )

    def _render(self, file: str, values: dict[str, object]) -> str:
        try:
            return self._templates[file].render(values)
        except _TEMPLATE_ERRORS as error:
            raise _TemplateFails(file) from error

    def link(self, action: Action, token: str) -> str:
        """Return the address of the page that takes a token."""
        return f"{self._base}{action.path}?token={quote(token, safe='')}"

    def _try(self, action: Action) -> None:
        """Write a letter to see that it can be written, and that it says what it must."""
        name = _NAMES[action]
        try:
            letter = self._write(action, "ada@example.org", "ada", _SAMPLE_TOKEN, _SAMPLE_CODE, 15)
        except _TemplateFails as error:
            cause = error.__cause__
            where = _where(cause, error.file)
            raise ConfigError(f"The template {where} fails: {cause}.") from error
        except MalformedMessage as error:
            raise ConfigError(f"The template {name}.subject is not usable: {error}.") from error
        if not letter.subject:
            raise ConfigError(f"The template {name}.subject is empty.")
        for part, body in (("txt", letter.text or ""), ("html", letter.html or "")):
            wanted = {"its link or token": _SAMPLE_TOKEN}
            if action is Action.PASSWORD_RECOVERY:
                wanted["its code"] = _SAMPLE_CODE
            for what, text in wanted.items():
                if text not in body:
                    raise ConfigError(
                        f"The template {name}.{part} does not show {what}, and nobody could use "
                        "the letter."
                    )


def sender_of(settings: Settings) -> str:
    """Return the address that the letters of the settings come from."""
    return _address(_sender(settings)).address


def letters_of(settings: Settings, base: str) -> Letters:
    """Return the letters that the settings describe, with links below `base`."""
    collector = settings.collector
    return Letters(
        sender=_sender(settings),
        base=base,
        directory=Path(collector.templates) if collector.templates else None,
    )


def _sender(settings: Settings) -> str:
    return settings.collector.sender or f"no-reply@{settings.smtp.domains[0]}"


def _address(sender: str) -> Address:
    try:
        return parse_address(sender, "it")
    except MalformedMessage as error:
        raise ConfigError(
            f"RELAY_COLLECTOR__SENDER is {sender!r}, which is not usable: {error}."
        ) from error


def _load(environment: jinja2.Environment, file: str) -> jinja2.Template:
    try:
        return environment.get_template(file)
    except jinja2.TemplateError as error:
        raise ConfigError(f"The template {_where(error, file)} cannot be read: {error}.") from error
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"The template {file} cannot be read: {error}.") from error


def _where(error: BaseException | None, otherwise: str) -> str:
    if isinstance(error, jinja2.TemplateSyntaxError) and error.name:
        return f"{error.name}, line {error.lineno},"
    return otherwise


def _check_names(directory: Path) -> None:
    try:
        files = sorted(path.name for path in directory.iterdir())
    except OSError as error:
        raise ConfigError(
            f"RELAY_COLLECTOR__TEMPLATES is {str(directory)!r}, which cannot be read "
            f"({error.strerror})."
        ) from error
    for file in files:
        if file in _FILES or file.startswith(("_", ".")) or file.endswith("~"):
            continue
        near = difflib.get_close_matches(file, _FILES, n=1)
        hint = f"did you mean {near[0]}?" if near else f"they are called {', '.join(_FILES)}."
        raise ConfigError(f"{directory / file} is no letter's template; {hint}")


def _one_line(text: str) -> str:
    """Return `text` without line breaks and other controls."""
    if text.isprintable():
        return text.strip()
    spaced = ("" if unicodedata.category(c) in {"Cc", "Cf"} else c for c in " ".join(text.split()))
    return "".join(spaced).strip()
