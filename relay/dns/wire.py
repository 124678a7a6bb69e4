"""What goes over the wire to a server of the DNS and back (RFC 1035, 4; RFC 6891 for EDNS).

`query` returns the bytes of a question, `read` what the bytes of a response say to it.

Promises
- Only a response with the id and the question of the query is read; the letters' case aside, byte
  for byte.
- Only records of the name asked for count, and of those that its CNAMEs lead to in turn, at most
  `MAX_ALIASES`.  What else a response holds, in whatever section, is passed over.
- Linear in the response, whatever a stranger had his server put into it.

Fails with `Malformed`.

Why not dnspython: it takes ten seconds to read 64 kB that hold four thousand names of a hundred
labels each, and the loop would stand still for as long.  `tests/dns/test_wire.py` holds this to it.

Pure.
"""

from __future__ import annotations

import ipaddress
import struct
from typing import NamedTuple

from relay.dns.questions import Answer, Question, RecordType, Status

MAX_ALIASES = 16
"""CNAMEs that are followed from one to the next."""
PAYLOAD = 1232
"""Bytes that a response over UDP may have (EDNS): no path cuts them up."""
NO_SOA_TTL = 30.0
"""Seconds for which it holds that there is nothing, where no SOA says for how long (RFC 2308)."""

_TYPES: dict[RecordType, int] = {
    "A": 1, "NS": 2, "CNAME": 5, "PTR": 12, "MX": 15, "TXT": 16, "AAAA": 28, "TLSA": 52,
}  # fmt: skip
_SOA, _OPT, _IN = 6, 41, 1
_NOERROR, _NXDOMAIN = 0, 3
_RCODES = {1: "FORMERR", 2: "SERVFAIL", 4: "NOTIMP", 5: "REFUSED"}
_RESPONSE, _OPCODE, _TRUNCATED, _RECURSION_DESIRED = 0x8000, 0x7800, 0x0200, 0x0100
_AUTHENTIC = 0x0020  # in a query: the answer may have it (RFC 6840, 5.7)

_HEADER = struct.Struct("!6H")  # id, flags, and how many: questions, answers, authority, additional
_RECORD = struct.Struct("!HHIH")  # type, class, TTL, length of the data
_EDNS = b"\0" + _RECORD.pack(_OPT, PAYLOAD, 0, 0)

_Labels = tuple[bytes, ...]


class Malformed(Exception):
    """The bytes are no response to the query."""


class Response(NamedTuple):
    """What a response says; `ttl`: for how many seconds."""

    truncated: bool
    """It did not fit: the rest is to be asked for over TCP."""
    error: str
    """The server's reason for no answer; empty: there is one."""
    answer: Answer
    ttl: float


class _Record(NamedTuple):
    ttl: int
    start: int
    end: int


def query(question: Question, id: int) -> bytes:
    """Return the bytes that ask; `id` is below 65536, and nobody can guess it."""
    name = b"".join(bytes((len(label),)) + label for label in _labels(question.name))
    return (
        _HEADER.pack(id, _RECURSION_DESIRED | _AUTHENTIC, 1, 0, 0, 1)
        + name
        + struct.pack("!BHH", 0, _TYPES[question.type], _IN)
        + _EDNS
    )


def _labels(name: str) -> _Labels:
    return tuple(name.encode("ascii").split(b".")) if name else ()


def read(asked: bytes, response: bytes, question: Question) -> Response:
    """Read what `response` says to `asked`, which are the bytes of `question`."""
    try:
        return _read(asked, response, question)
    except (struct.error, IndexError, ValueError) as error:
        raise Malformed("an answer that makes no sense") from error


def _read(asked: bytes, response: bytes, question: Question) -> Response:
    _, flags, questions, *counts = _HEADER.unpack_from(response)
    if asked[:2] != response[:2] or flags & (_RESPONSE | _OPCODE) != _RESPONSE:
        raise Malformed("an answer to another question")
    truncated, rcode = bool(flags & _TRUNCATED), flags & 15
    repeated = asked[_HEADER.size : -len(_EDNS)]
    start = _HEADER.size + len(repeated)
    repeats = questions == 1 and response[_HEADER.size : start].lower() == repeated.lower()
    if not repeats and (questions or rcode not in _RCODES):  # who failed may repeat nothing
        raise Malformed("an answer to another question")
    if rcode not in {_NOERROR, _NXDOMAIN} or truncated:
        error = "" if rcode in {_NOERROR, _NXDOMAIN} else _RCODES.get(rcode, f"RCODE {rcode}")
        return Response(truncated, error, Answer(Status.FAILED, detail=error), 0.0)
    reader = _Reader(response, start)
    answers, authority, additional = map(reader.section, counts)
    for record in additional.get(((), _OPT), ()):
        if record.ttl >> 24:  # the upper bits of the code
            error = f"RCODE {(record.ttl >> 24) << 4 | rcode}"
            return Response(False, error, Answer(Status.FAILED, detail=error), 0.0)
    said = _followed(reader, question, answers, authority, nxdomain=rcode == _NXDOMAIN)
    if flags & _AUTHENTIC:
        return said._replace(answer=said.answer._replace(secure=True))
    return said


_Section = dict[tuple[_Labels, int], list[_Record]]


def _followed(
    reader: _Reader, question: Question, answers: _Section, authority: _Section, *, nxdomain: bool
) -> Response:
    """What the answer section says of the name, or of what it is another name for."""
    kind = _TYPES[question.type]
    name = _labels(question.name.lower())
    canonical = ""
    ttls: list[int] = []
    for _ in range(MAX_ALIASES):
        if records := answers.get((name, kind)):
            if nxdomain:
                raise Malformed("an answer that makes no sense: records of a name that is not")
            ttls += [record.ttl for record in records]
            texts = dict.fromkeys(reader.text(question.type, record) for record in records)
            found = Answer(Status.FOUND, tuple(texts), canonical=canonical)
            return Response(False, "", found, _least(ttls))
        aliases = answers.get((name, _TYPES["CNAME"]))
        if not aliases:
            break
        ttls.append(aliases[0].ttl)
        name = tuple(label.lower() for label in reader.whole_name(aliases[0]))
        canonical = _shown(name)
    else:
        raise Malformed("an answer that makes no sense: aliases without end")
    void = Answer(Status.NXDOMAIN if nxdomain else Status.NO_DATA, canonical=canonical)
    for parent in range(len(name) + 1):
        if soa := authority.get((name[parent:], _SOA)):
            (least,) = struct.unpack_from("!I", reader.wire, soa[0].end - 4)
            return Response(False, "", void, _least([*ttls, soa[0].ttl, least]))
    return Response(False, "", void, min(NO_SOA_TTL, _least(ttls)))


def _least(ttls: list[int]) -> float:
    """The least TTL; one with the first bit set is none (RFC 2181, 8)."""
    return float(min((0 if ttl >> 31 else ttl for ttl in ttls), default=1 << 31))


class _Reader:
    """Reads records, from the first one on."""

    def __init__(self, wire: bytes, at: int) -> None:
        self.wire = wire
        self._at = at
        self._names: dict[int, _Labels] = {}  # those that something pointed to

    def section(self, count: int) -> _Section:
        """The records of a section, by name (in small letters) and type."""
        found: _Section = {}
        for _ in range(count):
            name, self._at = self._name(self._at)
            kind, class_, ttl, length = _RECORD.unpack_from(self.wire, self._at)
            start = self._at + _RECORD.size
            self._at = start + length
            if self._at > len(self.wire):
                raise Malformed("an answer that makes no sense: it ends too soon")
            if class_ == _IN or kind == _OPT:
                key = tuple(map(bytes.lower, name)), kind
                found.setdefault(key, []).append(_Record(ttl, start, self._at))
        return found

    def text(self, type: RecordType, record: _Record) -> str:
        """A record as `Answer` has it."""
        data = self.wire[record.start : record.end]
        match type:
            case "A":
                return str(ipaddress.IPv4Address(data))
            case "AAAA":
                return str(ipaddress.IPv6Address(data))
            case "MX":
                (preference,) = struct.unpack_from("!H", data)
                exchange = self.whole_name(record._replace(start=record.start + 2))
                return f"{preference} {_shown(exchange)}"
            case "TXT":
                return _joined(data).decode("latin-1")
            case "TLSA":
                return "{} {} {} {}".format(*data[:3], data[3:].hex())
        return _shown(self.whole_name(record))  # NS, PTR, CNAME

    def whole_name(self, record: _Record) -> _Labels:
        """The name that a record's data are."""
        name, end = self._name(record.start)
        if end != record.end:
            raise Malformed("an answer that makes no sense: a name that does not end")
        return name

    def _name(self, at: int) -> tuple[_Labels, int]:
        """The labels of the name at `at`, and where it ends."""
        labels: list[bytes] = []
        pointed: list[tuple[int, int]] = []  # where to, and with how many labels before
        start, end = at, -1
        size = 0
        while True:
            length = self.wire[at]
            if length >= 0xC0:
                to = (length & 0x3F) << 8 | self.wire[at + 1]
                if end < 0:
                    end = at + 2
                if to >= start:  # not further back: it would lead in a circle
                    raise Malformed("an answer that makes no sense: a name that has no end")
                if (known := self._names.get(to)) is not None:
                    labels += known
                    size += sum(map(len, known)) + len(known)
                    break
                pointed.append((to, len(labels)))
                at = start = to
            elif length >= 0x40:
                raise Malformed("an answer that makes no sense: a label of no known kind")
            else:
                at += 1
                if not length:
                    break
                label = self.wire[at : at + length]
                at += length
                size += length + 1
                labels.append(label)
            if size > 254 or len(pointed) > 127:
                raise Malformed("an answer that makes no sense: a name that is too long")
        if size > 254:
            raise Malformed("an answer that makes no sense: a name that is too long")
        for to, before in pointed:
            self._names[to] = tuple(labels[before:])
        return tuple(labels), at if end < 0 else end


def _shown(name: _Labels) -> str:
    """A name without the final dot; the root is the dot alone."""
    return ".".join(label.decode("latin-1") for label in name) or "."


def _joined(data: bytes) -> bytes:
    """The strings of a TXT record, one behind the other."""
    parts = []
    at = 0
    while at < len(data):
        end = at + 1 + data[at]
        if end > len(data):
            raise Malformed("an answer that makes no sense: a string that ends too late")
        parts.append(data[at + 1 : end])
        at = end
    return b"".join(parts)
