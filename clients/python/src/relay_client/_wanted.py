"""Which mail is waited for.

The relay waits for a part of a subject or a sender, in any case, but knows no patterns: for one it
is asked for whatever comes, one message after the other, and each is looked at here.  So nothing is
asked for in vain, and mail that fits ends the wait as it comes.  The TypeScript client does the
same (wanted.ts).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Union, cast

from relay_client._records import JSON
from relay_client._text import quoted, shown_match
from relay_client.errors import RelayError

__tracebackhide__ = True  # a test that fails shows the test

Match = Union[str, "re.Pattern[str]", None]
"""A part of a text in any case, or a pattern that is searched for in it; None is any text."""


@dataclass(frozen=True)
class Wanted:
    """A message with this subject, from this sender, which came later than another."""

    subject: Match = None
    sender: Match = None
    after: str | None = None

    def __post_init__(self) -> None:
        for name, match in (("subject", self.subject), ("sender", self.sender)):
            text = cast("Any", match.pattern if isinstance(match, re.Pattern) else match)
            if match is not None and not isinstance(text, str):
                raise RelayError(
                    f"a {name} is waited for by a part of it or a pattern (re.compile) of text,"
                    f" not {quoted(repr(match))}"
                )

    @property
    def query(self) -> Mapping[str, str]:
        """What the relay is asked for."""
        asked = (("subject", self.subject), ("from", self.sender), ("after", self.after))
        return {name: value for name, value in asked if isinstance(value, str)}

    def fits(self, found: JSON) -> bool:
        """Whether a message that the relay gave is one of them."""
        looks = ((self.subject, found["subject"]), (self.sender, found["from_address"]))
        return all(
            match.search(text or "") is not None
            for match, text in looks
            if isinstance(match, re.Pattern)
        )

    def in_words(self, count: int | None = None) -> str:
        """Say what is waited for: a message, or `count` of them."""
        words = [] if self.sender is None else [f" from {shown_match(self.sender)}"]
        if self.subject is not None:
            words.append(f" with {shown_match(self.subject)} in the subject")
        one = "mail" if words else "any mail"
        many = f"{count} message{'' if count == 1 else 's'}"
        words += [] if self.after is None else [f" after {self.after}"]
        return "".join([one if count is None else many, *words])
