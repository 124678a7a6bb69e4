"""Drives what asks the DNS by a dictionary."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TypeVar

from relay.dns.questions import NXDOMAIN, Answer, Asking, Question, found

T = TypeVar("T")

Zone = Mapping[tuple[str, str], Answer | str | list[str]]
"""What a DNS holds: (name in small letters, type) to one record, several, or an answer."""


def answered(asking: Asking[T], zone: Zone) -> T:
    """The result, where the DNS holds no more than `zone`."""
    try:
        question = next(asking)
        while True:
            question = asking.send(_answer(question, zone))
    except StopIteration as stop:
        result: T = stop.value
        return result


def txt_of(published: Mapping[str, str]) -> Callable[..., bytes | None]:
    """What dkimpy asks for TXT records, where the DNS holds these."""

    def txt(name: bytes, **_: object) -> bytes | None:
        held = published.get(name.decode().removesuffix("."))
        return held.encode() if held else None

    return txt


def _answer(question: Question, zone: Zone) -> Answer:
    held = zone.get((question.name.lower(), question.type), NXDOMAIN)
    if isinstance(held, Answer):
        return held
    return found(held) if isinstance(held, str) else found(*held)
