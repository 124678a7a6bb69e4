"""What a message itself tells of who sent it: all that a verdict needs of its bytes.

The half of `relay.checks.verdict` that reads the message, for the parser, which may be killed:
linear in the message, and it never raises for what that holds.  Of a message of any length it makes
at most ten signatures (digests and names) and the domain of From; `Evidence.as_json` takes that
through a pipe.

Imports the standard library and pure modules only, as the parser asks.
"""

from __future__ import annotations

import json
from typing import Any, NamedTuple

from relay.checks.author import Author, author
from relay.checks.fields import Oversize, split
from relay.checks.signatures import Prepared, prepare


class Evidence(NamedTuple):
    """What a message itself tells."""

    signatures: tuple[Prepared, ...]
    author: Author

    def as_json(self) -> bytes:
        """The evidence as a JSON object, for another process."""
        signatures = [
            {**one._asdict(), "signature": one.signature.hex(), "digest": one.digest.hex()}
            for one in self.signatures
        ]
        return json.dumps({"signatures": signatures, "author": self.author._asdict()}).encode()

    @classmethod
    def from_json(cls, text: bytes) -> Evidence:
        """Read what `as_json` wrote; ValueError, KeyError or TypeError for anything else."""
        return cls.from_object(json.loads(text))

    @classmethod
    def from_object(cls, said: Any) -> Evidence:
        """Read what `as_json` wrote, once that is parsed; errors as `from_json`."""
        signatures = []
        for one in said["signatures"]:
            raw = {name: bytes.fromhex(one[name]) for name in ("signature", "digest")}
            signatures.append(Prepared(**{**one, **raw}))
        return cls(tuple(signatures), Author(**said["author"]))


def examine(raw: bytes) -> Evidence:
    """Read a message."""
    try:
        fields, body = split(raw)
    except Oversize as error:
        return Evidence((Prepared(error=str(error)),), Author(error=str(error)))
    return Evidence(prepare(fields, body), author(fields))
