"""Mailboxes that a relay has made or found, by what opened them: what never changes of them.

A mailbox keeps its id, its owner and its token for as long as it lives, and an address has one
mailbox that lives.  So whoever was shown one may be taken to it again without a look-up, by whom
sees for himself whether it still lives, and looks it up where it does not: by then there may be
another at its address, made by another relay.

Promises: nobody finds what no credential of his own has found; above `most` the oldest is
forgotten, and no caller adds more than one for a mailbox.  Does no I/O.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from relay.mailboxes.records import Mailbox
from relay.mailboxes.visibility import Credential

_MOST = 4096


class KnownMailboxes:
    """The mailboxes that one relay knows, each by its address and a credential that opens it."""

    def __init__(self, most: int = _MOST) -> None:
        self._most = most
        self._found: dict[tuple[str, Credential], Mailbox] = {}

    def get(self, address: str, credential: Credential) -> Mailbox | None:
        """The mailbox that this credential opened at this address, as it was then; or None."""
        for one in _single(credential):
            if (found := self._found.get((address, one))) is not None:
                return found
        return None

    def note(self, address: str, credential: Credential, mailbox: Mailbox | None) -> None:
        """Remember what a credential has opened; None: nothing, or no more."""
        for one in _single(credential):
            self._found.pop((address, one), None)
            if mailbox is not None and _opens(one, mailbox):
                if len(self._found) >= self._most:
                    del self._found[next(iter(self._found))]
                self._found[address, one] = replace(mailbox, usage=None)
                return


def _single(credential: Credential) -> Iterator[Credential]:
    """The credentials that are in one; a token comes last, for it is not known whose it is."""
    if credential.administrator:
        yield Credential(administrator=True)
    if credential.owner_id is not None:
        yield Credential(owner_id=credential.owner_id)
    if credential.token_hash is not None:
        yield Credential(token_hash=credential.token_hash)


def _opens(one: Credential, mailbox: Mailbox) -> bool:
    """Whether what has opened a mailbox was this."""
    return one.administrator or one.owner_id is None or one.owner_id == mailbox.owner_id
