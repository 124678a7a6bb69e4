"""Filters that tell which runs of messages cannot hold a sub-string.  Pure.

A filter is a Bloom filter (Bloom, 1970) of the runs of one to four bytes that occur in the words of
some texts, once their case is folded.  Whoever looks for a needle asks for the runs of the needle's
own words: where one is missing no text holds the needle, and none has to be read.

Promises
- No text that matches is passed over: what `ILIKE` takes for equal, under whatever locale, `folded`
  takes for equal, too.
- Of texts without the needle about one filter in a hundred says "perhaps", for a needle of four
  bytes; one in ten thousand for eight; more where the parts of the needle occur apart, and of words
  that all occur a filter does not say in which order.

Cost: 20 µs a 2 kB text, where 64 of them share a filter and most of their lines or words, as mail
that programs send does; 0.2 ms where they share little.

Why words, when a sub-string may begin and end anywhere: texts have most of theirs in common, so the
runs are taken from each word once; runs across a space are nearly all there anyway.

Why bytes in fours: `memoryview.cast` makes numbers of them at the speed of C.  Shorter runs are
their beginnings.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator, Set

MOST_PROBED = 8
"""Runs of a needle that are asked for; more would cost more than they tell."""

# A run.  So filters are of many sizes, and what happens to pass one does not pass all that have the
# same words: with powers of two one word in sixty passed nearly all of them.
_BITS = 14
_SMALLEST, _LARGEST = 1024, 256 * 1024  # bytes of a filter
_FACTOR = 0x9E3779B97F4A7C15
_LANES = 256  # keys that are multiplied at once
_LOW, _LOW_29 = (
    int.from_bytes(mask.to_bytes(16, "little") * _LANES, "little")
    for mask in (2**64 - 1, 2**35 - 1)
)
_DIGITS = bytes([*b"01", *bytes(254)])
_END = "\n\n\n"  # behind a word, so that each of its bytes begins a run of four


class _Fold(dict[int, str]):
    """A character to one that stands for all that may be its other cases."""

    def __missing__(self, code: int) -> str:
        plain = chr(code).casefold()[0]
        self[code] = plain
        return plain


# Dotless i is an i to Turkish servers.
_FOLD = _Fold({0x131: "i"})


def folded(text: str) -> bytes:
    """Return a text without case, character by character, as UTF-8."""
    if text.isascii():
        return text.lower().encode()
    return text.translate(_FOLD).encode("utf-8", "replace")


def runs(text: str) -> set[int]:
    """Return the runs of four bytes in the words of a text and behind their ends, as numbers."""
    words: set[str] = set()
    for line in set(text.split("\n")):
        words.update(line.split())
    # Apart, for folding what is not ASCII costs many times as much.
    plain = [word for word in words if word.isascii()]
    words.difference_update(plain)
    data = b"".join(folded(_END.join(part) + _END) for part in (plain, words) if part)
    found: set[int] = set()
    for start in range(4):
        end = start + (len(data) - start) // 4 * 4
        found.update(memoryview(data[start:end]).cast("I"))
    return found


def make_filter(fours: Set[int]) -> bytes:
    """Return the filter of these runs of four bytes, and of all that they begin with."""
    threes = {run & 0xFFFFFF for run in fours}
    twos = {run & 0xFFFF for run in threes}
    ones = {run & 0xFF for run in twos}
    kinds = (4, fours), (3, threes), (2, twos), (1, ones)
    count = sum(len(found) for _, found in kinds)
    size = min(max(_SMALLEST, count * _BITS // 8), _LARGEST)
    # A byte for each bit, while they are set.
    bits, length = bytearray(8 * size), 8 * size
    for one, two in _hashes(kinds):
        bits[one % length] = 1
        place = one + two
        bits[place % length] = 1
        bits[(place + two) % length] = 1
    bits.reverse()
    return int(bits.translate(_DIGITS), 2).to_bytes(size, "little")


def _hashes(kinds: Iterable[tuple[int, Set[int]]]) -> Iterator[tuple[int, int]]:
    """Yield what `_places` makes its places of, for all runs of these lengths.

    It multiplies many at once, as one large number of which each key has 16 bytes: that is a third
    of what one by one costs.  Held to `_places` by tests/mailboxes/test_grams.py.
    """
    runs, lengths = array("I"), array("I")
    for length, found in kinds:
        runs.extend(found)
        lengths.extend(array("I", [length]) * len(found))
    count = len(runs)
    keys = array("I", bytes(16 * (count + -count % _LANES)))
    keys[: 4 * count : 4] = runs
    keys[1 : 4 * count : 4] = lengths
    for start in range(0, len(keys), 4 * _LANES):
        lanes = int.from_bytes(keys[start : start + 4 * _LANES].tobytes(), "little")
        mixed = lanes * _FACTOR & _LOW
        mixed ^= mixed >> 29 & _LOW_29
        halves = memoryview(mixed.to_bytes(16 * _LANES, "little")).cast("I")
        here = min(_LANES, count - start // 4)
        yield from zip(
            halves[: 4 * here : 4].tolist(), halves[1 : 4 * here : 4].tolist(), strict=True
        )


def probes(*needles: str | None) -> list[int]:
    """Return what to ask of a filter: all of these bits (modulo its size) are set, or no text of
    its holds all the needles.  None and one without a word ask for nothing.
    """
    asked: list[int] = []
    for needle in needles:
        found: list[int] = []
        for word in (needle or "").split():
            data = folded(word)
            length = min(4, len(data))
            found += [
                length << 32 | int.from_bytes(data[at : at + length], "little")
                for at in range(len(data) - length + 1)
            ]
        step = max(1, len(found) // MOST_PROBED)
        # From the end: what begins alike (ids made together) differs there.
        for key in list(dict.fromkeys(found[::-step]))[:MOST_PROBED]:
            asked += _places(key)
    return asked


def holds(made: bytes, asked: Iterable[int]) -> bool:
    """Whether a filter may hold what was asked for; `relay.search_chunks` are asked so in SQL."""
    count = 8 * len(made)
    return all(made[place % count >> 3] >> (place % count & 7) & 1 for place in asked)


def _places(key: int) -> tuple[int, int, int]:
    # Fibonacci hashing, then three places out of two (Kirsch and Mitzenmacher, 2006).
    mixed = key * _FACTOR & 0xFFFFFFFFFFFFFFFF
    mixed ^= mixed >> 29
    one, two = mixed & 0xFFFFFFFF, mixed >> 32
    return one, one + two, one + 2 * two
