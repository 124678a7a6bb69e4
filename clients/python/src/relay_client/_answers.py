"""What a relay's answers look like: what is otherwise was said by no relay.

A shape is a function that tells whether a value has it.  Only what this client reads is looked at,
so a relay may say more than its clients know.  The TypeScript client has the same in answers.ts.
"""

from __future__ import annotations

from typing import Any, Callable, cast

from relay_client._records import parsed_time

Shape = Callable[[Any], bool]


def _text(value: Any) -> bool:
    return isinstance(value, str)


def _maybe_text(value: Any) -> bool:
    return value is None or isinstance(value, str)


def _number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _truth(value: Any) -> bool:
    return isinstance(value, bool)


def is_token(value: Any) -> bool:
    """Whether a value is a token, as a header can carry it."""
    return isinstance(value, str) and value.isascii() and value.isprintable() and value != ""


def _maybe_token(value: Any) -> bool:
    return value is None or is_token(value)


def _time(value: Any) -> bool:
    try:
        parsed_time(value)
    except (ValueError, TypeError, AttributeError):
        return False
    return True


def _fields(value: Any) -> bool:
    return isinstance(value, dict) and all(
        isinstance(one, str) or _texts(one) for one in cast("dict[str, Any]", value).values()
    )


def _every(shape: Shape) -> Shape:
    return lambda value: isinstance(value, list) and all(map(shape, cast("list[object]", value)))


def _record(**shapes: Shape) -> Shape:
    def has(value: Any) -> bool:
        return isinstance(value, dict) and all(
            name in value and shape(value[name]) for name, shape in shapes.items()
        )

    return has


_texts = _every(_text)

INBOX = _record(address=_text, session_token=_maybe_token)

_ENTRY = _record(id=_text, from_address=_maybe_text, subject=_maybe_text, received_at=_time)
LIST = _every(_ENTRY)

REFUSED = _every(_record(address=_text, reply=_text))

MESSAGE = _record(
    id=_text,
    from_address=_maybe_text,
    to=_text,
    subject=_maybe_text,
    received_at=_time,
    size=_number,
    body_text=_maybe_text,
    body_html=_maybe_text,
    otp=_maybe_text,
    links=_texts,
    headers=_fields,
    attachments=_every(
        _record(
            index=_number,
            filename=_maybe_text,
            content_type=_text,
            size=_number,
            content_id=_maybe_text,
        )
    ),
)


def MESSAGE_OR_NONE(value: Any) -> bool:  # noqa: N802 - a shape as the others are
    """Whether it is a message, or null where none came."""
    return value is None or MESSAGE(value)


_CHECK = _record(result=_text, detail=_text)
CHECKS = _record(
    spf=_CHECK,
    dkim=_CHECK,
    dmarc=_CHECK,
    score=_number,
    reasons=_texts,
    findings=_every(_record(id=_text, severity=_text, text=_text)),
)

SENT = _record(messages=_every(_record(id=_text, recipient=_maybe_text)))

OUTBOUND = _record(id=_text, status=_text, error=_maybe_text)

INFO = _record(
    version=_text,
    smtp=_maybe_text,
    submission=_maybe_text,
    domains=_texts,
    capture=_truth,
    starttls=_truth,
    public_url=_text,
)
