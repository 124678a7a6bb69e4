"""Responses of the DNS, byte for byte: held to dnspython, which reads them another way."""

from __future__ import annotations

import struct
import time

import dns.exception
import dns.flags
import dns.message
import dns.name
import dns.opcode
import dns.rcode
import dns.rdatatype
import dns.rrset
import pytest
from dns.rdtypes.txtbase import TXTBase
from hypothesis import example, given
from hypothesis import strategies as st

from relay.dns.questions import Answer, Question, Status
from relay.dns.wire import NO_SOA_TTL, PAYLOAD, Malformed, query, read

NAMES = ("a.example", "b.example", "C.a.example", "example", "d.other")
SOA = "ns.example. admin.example. 1 3600 600 86400 {least}"
NAME = st.sampled_from(NAMES)
RECORD = st.one_of(
    st.tuples(st.just("A"), st.sampled_from(("192.0.2.1", "192.0.2.2"))),
    st.tuples(st.just("AAAA"), st.sampled_from(("2001:db8::1", "::"))),
    st.tuples(st.just("MX"), st.builds("{} {}.".format, st.integers(0, 65535), NAME)),
    st.tuples(st.just("MX"), st.just("0 .")),
    st.tuples(st.just("TXT"), st.sampled_from(('"v=spf1 -all"', '"one" "two"', '"\\233"'))),
    st.tuples(st.sampled_from(("CNAME", "NS", "PTR")), st.builds("{}.".format, NAME)),
    st.tuples(st.just("TLSA"), st.just("3 1 1 " + "ab" * 32)),
)
RRSET = st.tuples(NAME, st.integers(0, 1 << 31), RECORD)
TYPES = ("A", "AAAA", "CNAME", "MX", "NS", "PTR", "TLSA", "TXT")


def _response(asked: bytes) -> dns.message.Message:
    return dns.message.make_response(dns.message.from_wire(asked))


def _add(section: list[dns.rrset.RRset], name: str, ttl: int, record: tuple[str, str]) -> None:
    section.append(dns.rrset.from_text(f"{name}.", ttl, "IN", *record))


@given(
    name=NAME,
    type=st.sampled_from(TYPES),
    answers=st.lists(RRSET, max_size=6),
    soa=st.none() | st.tuples(NAME, st.integers(0, 900), st.integers(0, 900)),
    rcode=st.sampled_from((0, 0, 0, 3, 2, 5, 16)),
    id=st.integers(0, 65535),
    secure=st.booleans(),
)
@example("a.example", "A", [("a.example", 9, ("CNAME", "a.example."))], None, 0, 0, False)
def test_as_dnspython_reads_it(name, type, answers, soa, rcode, id, secure):
    """The same records, the same status, the same TTL, or both make no sense of it."""
    question = Question(name.lower(), type)
    asked = query(question, id)
    response = _response(asked)
    response.set_rcode(rcode)
    if secure:
        response.flags |= dns.flags.AD
    for each in answers:
        _add(response.answer, *each)
    if soa is not None:
        _add(response.authority, soa[0], soa[1], ("SOA", SOA.format(least=soa[2])))
    wire = response.to_wire(max_size=65535)
    theirs = _as_dnspython(wire)
    try:
        ours = read(asked, wire, question)
    except Malformed:
        assert theirs is None
        return
    if rcode not in {0, 3}:
        assert (ours.answer.status, ours.answer.secure) == (Status.FAILED, False)
        assert ours.error == dns.rcode.to_text(rcode).replace("BADVERS", "RCODE 16")
        return
    assert theirs is not None
    assert (ours.truncated, ours.error) == (False, "")
    assert (ours.answer, ours.ttl) == theirs


def _as_dnspython(wire: bytes) -> tuple[Answer, float] | None:
    message = dns.message.from_wire(wire)
    assert isinstance(message, dns.message.QueryMessage)
    try:
        chain = message.resolve_chaining()
    except dns.exception.DNSException:
        return None
    led_to = chain.canonical_name.to_text(omit_final_dot=True).lower()
    said = Answer(
        Status.FOUND,
        secure=bool(message.flags & dns.flags.AD),
        canonical=led_to if chain.cnames else "",
    )
    if chain.answer is None:
        status = Status.NXDOMAIN if message.rcode() == dns.rcode.NXDOMAIN else Status.NO_DATA
        has_soa = any(
            found.rdtype == dns.rdatatype.SOA and chain.canonical_name.is_subdomain(found.name)
            for found in message.authority
        )
        said = said._replace(status=status)
        return said, float(min(chain.minimum_ttl, 1 << 31 if has_soa else NO_SOA_TTL))
    records = tuple(_text(rdata) for rdata in chain.answer)
    return said._replace(records=records), float(chain.minimum_ttl)


def _text(rdata: dns.rdata.Rdata) -> str:
    if isinstance(rdata, TXTBase):
        return b"".join(rdata.strings).decode("latin-1")
    text = rdata.to_text()
    return text if text.endswith(" .") else text.removesuffix(".")


QUESTION = Question("a.example", "A")
ASKED = query(QUESTION, 258)


def test_a_query():
    """It asks one question, wants recursion and what was validated, and says how much fits."""
    message = dns.message.from_wire(query(Question("foo:bar/b z.example", "TXT"), 7))
    assert message.id == 7
    assert message.flags == dns.flags.RD | dns.flags.AD
    assert message.opcode() == dns.opcode.QUERY
    assert (message.edns, message.payload) == (0, PAYLOAD)
    (question,) = message.question
    assert question.name == dns.name.Name((b"foo:bar/b z", b"example", b""))
    assert question.rdtype == dns.rdatatype.TXT


def _of_another_id(wire: bytearray) -> None:
    wire[1] ^= 1


def _a_query(wire: bytearray) -> None:
    wire[2] &= 0x7F


def _another_opcode(wire: bytearray) -> None:
    wire[2] |= 0x10


def _another_name(wire: bytearray) -> None:
    wire[13] ^= 1


def _another_type(wire: bytearray) -> None:
    wire[12 + 12] ^= 1


def _no_question(wire: bytearray) -> None:
    del wire[12 : 12 + 15]
    wire[5] = 0


@pytest.mark.parametrize(
    "forge",
    [_of_another_id, _a_query, _another_opcode, _another_name, _another_type, _no_question],
)
def test_answers_to_other_questions(forge):
    """None is believed, whatever it says."""
    response = _response(ASKED)
    _add(response.answer, "a.example", 60, ("A", "203.0.113.66"))
    wire = bytearray(response.to_wire())
    assert read(ASKED, bytes(wire), QUESTION).answer.status is Status.FOUND
    forge(wire)
    with pytest.raises(Malformed):
        read(ASKED, bytes(wire), QUESTION)


def test_what_else_it_holds():
    """Records of other names, and in other sections, say nothing to the question."""
    response = _response(ASKED)
    _add(response.answer, "b.example", 60, ("A", "203.0.113.66"))
    _add(response.authority, "a.example", 60, ("A", "203.0.113.66"))
    _add(response.additional, "a.example", 60, ("A", "203.0.113.66"))
    assert read(ASKED, response.to_wire(), QUESTION).answer == Answer(Status.NO_DATA)


def test_any_bytes_are_read_or_refused():
    """A response that is cut off or of which a byte is another raises nothing else."""
    response = _response(ASKED)
    _add(response.answer, "a.example", 60, ("CNAME", "b.a.example."))
    _add(response.answer, "b.a.example", 60, ("A", "192.0.2.1"))
    wire = response.to_wire()
    read(ASKED, wire, QUESTION)
    refused = 0
    for at in range(len(wire)):
        for tried in (wire[:at], *(wire[:at] + bytes((n,)) + wire[at + 1 :] for n in range(256))):
            try:
                read(ASKED, tried, QUESTION)
            except Malformed:
                refused += 1
    assert refused > 1000


@pytest.mark.parametrize(
    "name",
    [
        b"\xc0\x1b",  # to itself
        b"\x01a\xc0\x1b",
        b"\xc0\x1d\xc0\x1b",  # to the next, which leads back
        b"\xc1\x00",  # ahead
        b"\xff\xff",
        b"\x01a" * 128 + b"\0",  # 256 bytes
        b"\x3f" + b"a" * 30,  # past the end
        b"\x80\0",
        b"\x41" + b"a" * 65 + b"\0",
    ],
)
def test_names_that_are_none(name):
    """They are refused at once."""
    wire = bytearray(_response(ASKED).to_wire())
    del wire[27:]  # what is behind the question: EDNS
    wire[7], wire[11] = 1, 0
    wire += name + struct.pack("!HHIH", 1, 1, 60, 4) + bytes(4)
    with pytest.raises(Malformed):
        read(ASKED, bytes(wire), QUESTION)


@pytest.mark.parametrize("pointing", ["records", "owners"])
def test_a_large_response_costs_little(pointing):
    """Four thousand names of a hundred labels, in 64 kB: dnspython takes ten seconds for them."""
    long = b"\x01x" * 120 + b"\xc0\x0c"
    question = Question("a.example", "MX")
    asked = query(question, 258)
    records = [b"\xc0\x0c" + struct.pack("!HHIHH", 15, 1, 60, 2 + len(long), 1) + long]
    to = struct.pack("!H", 0xC000 | 27 + 2 + 10 + 2)
    while sum(map(len, records)) < 65_000 and len(records) < 3500:
        number = struct.pack("!H", len(records) + 1)
        if pointing == "records":
            record = b"\xc0\x0c" + struct.pack("!HHIH", 15, 1, 60, 4) + number + to
        else:
            record = b"\x01" + number[1:] + to + struct.pack("!HHIH", 15, 1, 60, 3) + number + b"\0"
        records.append(record)
    header = struct.pack("!6H", 258, 0x8180, 1, len(records), 0, 0)
    wire = b"".join((header, asked[12:27], *records))
    began = time.process_time()
    response = read(asked, wire, question)
    assert time.process_time() - began < 2
    assert response.answer.status is Status.FOUND
    assert len(response.answer.records) == (len(records) if pointing == "records" else 1)
