"""What is changed of messages by hand: whether they were read, and how they are tagged.

The law of tags is said here once, in SQL, for one message and for many: the tags that it has, or
all that it is to have; without those that are taken away; with those that are added.  Tags are
compared as they are looked for, without regard to case, and a message has 20 at most: those that
find no room are not added.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from relay.db.pool import Pool
from relay.errors import TemporaryFailure
from relay.mailboxes.query import Term


class NotParsed(TemporaryFailure):
    """A message has no summary yet, which would hold what is to be changed."""


@dataclass(frozen=True)
class Change:
    """What is to become of messages; None and nothing leave them as they are.

    `tags`: all that they are to have; `remove`, `add`: those that they are to lose and to get.
    """

    is_read: bool | None = None
    tags: Sequence[str] | None = None
    remove: Sequence[str] = ()
    add: Sequence[str] = ()

    @property
    def tagging(self) -> bool:
        """Whether tags are changed."""
        return self.tags is not None or bool(self.remove) or bool(self.add)

    def narrowed(self) -> tuple[Term, ...]:
        """What holds for every message to which it makes a difference, as far as that is simple."""
        if self.is_read is not None and not self.tagging:
            return (Term("unread", negated=not self.is_read),)
        changed = [*self.remove, *self.add]
        if self.is_read is not None or self.tags is not None or len(changed) != 1:
            return ()
        (tag,) = changed
        if tag != " ".join(tag.split()):
            return ()  # it is written otherwise where it is kept
        return (Term("tag", tag, negated=bool(self.add)),)

    async def values(self, pool: Pool) -> dict[str, Any]:
        """What the statements name: what does not depend on a message is computed here, once.

        Raises `DatabaseUnavailable`.
        """
        given: dict[str, Any] = {
            "tags": None if self.tags is None else list(self.tags),
            "remove": list(self.remove),
            "add": list(self.add),
        }
        whole, removed, added = None, [], None
        if self.tagging:
            ((whole, removed, added),) = await pool.fetch(_READY, given)
        return {
            "is_read": self.is_read,
            "tagging": self.tagging,
            "replaced": self.tags is not None,
            "whole": whole,
            "removed": removed,
            "added": added,
        }


def _changed(had: str, removed: str, added: str) -> str:
    return f"""
    relay.tags_of(
        ARRAY(
            SELECT tag
            FROM unnest({had}) WITH ORDINALITY had (tag, place)
            WHERE lower(tag) <> ALL ({removed})
            ORDER BY place
        ) || ARRAY(
            SELECT tag
            FROM unnest({added}) WITH ORDINALITY more (tag, place)
            WHERE lower(tag) = ANY ({removed})
               OR lower(tag) <> ALL (
                   coalesce(lower(({had})::text)::text[], ARRAY[]::text[])
               )
            ORDER BY place
        )
    )"""  # noqa: S608 - constants of this module only


# The texts of an array are lowered at once.
_READY = f"""
    WITH given AS (
        SELECT coalesce(lower(relay.tags_of(%(remove)s::text[])::text)::text[], ARRAY[]::text[])
                   AS removed,
               relay.tags_of(%(add)s::text[]) AS added
    )
    SELECT {_changed("%(tags)s::text[]", "given.removed", "given.added")}, removed, added
    FROM given"""  # noqa: S608 - likewise

# Only of the row that is updated, so that whoever tags it meanwhile loses nothing: PostgreSQL
# computes it again for the row as the other one left it.  A SELECT in it that does not depend on
# the row ends a server of PostgreSQL 18 there, on a null pointer, and every connection with it; so
# there is none, and what it would say comes as a value.
TAGS = f"""CASE WHEN %(replaced)s THEN %(whole)s::text[] ELSE {
    _changed("s.tags", "%(removed)s::text[]", "%(added)s::text[]")
} END"""
"""The tags that a row `s` of `relay.summaries` gets; by `Change.values`."""
