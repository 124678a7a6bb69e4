"""Lists of tags as DKIM has them (RFC 6376, 3.2): of signatures, and of key records.

Each function takes a tag from what `parse` made and fails with `Unusable`, whose text says as a
clause what is wrong.

Pure.
"""

from __future__ import annotations

import base64
import binascii
import re
from typing import NoReturn

from relay.checks.details import quoted

_NAME = re.compile(rb"[A-Za-z][A-Za-z0-9_]*")
_WHITE = re.compile(rb"[ \t\r\n]+")
_NUMBER = re.compile(r"[0-9]{1,76}", re.ASCII)

Tags = dict[str, bytes]


class Unusable(Exception):
    """A signature or a key record is not one that can be used."""


def unusable(detail: str) -> NoReturn:
    """Say so."""
    raise Unusable(detail)


def parse(value: bytes) -> Tags:
    """Parse a tag list (3.2), values without the white space around them."""
    tags: Tags = {}
    parts = value.split(b";")
    if not parts[-1].strip(b" \t\r\n"):
        parts.pop()
    for part in parts:
        name, equals, value_of = part.partition(b"=")
        name = name.strip(b" \t\r\n")
        if not equals or not _NAME.fullmatch(name):
            unusable("it is no list of tags")
        key = name.decode()
        if key in tags:
            unusable(f"it has the tag {quoted(key)} twice")
        tags[key] = value_of.strip(b" \t\r\n")
    return tags


def text(tags: Tags, name: str, default: str | None = None) -> str:
    """The value of a tag without any white space."""
    value = tags.get(name)
    if value is None:
        if default is None:
            unusable(f"the tag {name}= is missing")
        return default
    return _WHITE.sub(b"", value).decode("utf-8", "surrogateescape")


def items(said: str) -> list[str]:
    """The parts of a value between colons."""
    return said.split(":")


def number(tags: Tags, name: str) -> int | None:
    """The value of a tag as a number, None where it is not there."""
    if name not in tags:
        return None
    said = text(tags, name)
    if not _NUMBER.fullmatch(said):
        unusable(f"{name}= is no number")
    return int(said)


def decoded(tags: Tags, name: str) -> bytes:
    """The bytes that a value in base64 stands for."""
    said = text(tags, name)
    try:
        return base64.b64decode(said, validate=True)
    except (binascii.Error, ValueError):
        unusable(f"{name}= is not base64")
