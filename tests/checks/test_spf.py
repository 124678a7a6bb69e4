"""SPF, by the test suite that was published with RFC 7208, and its limits."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from relay.checks.spf import MAX_EXPLANATION, MAX_HOSTS, MAX_RECORD, MAX_TERMS, Spf, check
from relay.dns.questions import FAILED, NXDOMAIN, Answer, Asking, Question, found

SUITE = Path(__file__).parent / "rfc7208" / "rfc7208-tests.yml"


class Zone:
    """The DNS of a scenario, and what was asked of it."""

    def __init__(self, data: dict[str, list[Any]]) -> None:
        self._names = {name.lower(): _records(entries) for name, entries in data.items()}
        self.asked: list[Question] = []

    def answer(self, question: Question) -> Answer:
        self.asked.append(question)
        name = question.name.lower()
        for _ in range(8):
            if (entries := self._names.get(name)) is None:
                return FAILED if name.startswith("error.") else NXDOMAIN
            if records := [value for kind, value in entries if kind == question.type]:
                return FAILED if "TIMEOUT" in records else found(*records)
            if ("TIMEOUT", "") in entries:
                return FAILED
            aliases = [value for kind, value in entries if kind == "CNAME"]
            if not aliases:
                return found()
            name = aliases[0].lower()
        return FAILED  # a loop

    def run(self, asking: Asking[Spf]) -> Spf:
        try:
            question = next(asking)
            while True:
                question = asking.send(self.answer(question))
        except StopIteration as stop:
            result: Spf = stop.value
            return result


def _records(entries: list[Any]) -> list[tuple[str, str]]:
    """What the suite writes as SPF counts as TXT, unless TXT is there (or said to be NONE)."""
    pairs = [
        ("TIMEOUT", "") if entry == "TIMEOUT" else next(iter(entry.items())) for entry in entries
    ]
    said = any(kind == "TXT" for kind, _ in pairs)
    made = []
    for kind, value in pairs:
        if kind == "SPF" and said:
            continue
        kind = "TXT" if kind == "SPF" else kind
        if kind == "TXT":
            if value == "NONE":
                continue
            text = value if isinstance(value, str) else "".join(value)
            made.append((kind, text.encode().decode("latin-1")))
        elif kind == "MX":
            made.append((kind, f"{value[0]} {value[1]}"))
        elif kind == "AAAA":
            made.append((kind, value.lower()))
        else:
            made.append((kind, value.removesuffix(".")))
    return made


def _cases() -> list[Any]:
    cases = []
    with SUITE.open(encoding="utf-8") as file:
        for scenario in yaml.safe_load_all(file):
            for name, test in scenario["tests"].items():
                cases.append(pytest.param(scenario["zonedata"], test, id=name))
    return cases


CASES = _cases()


def test_the_suite_is_whole():
    """So many cases were published."""
    assert len(CASES) == 203


@pytest.mark.parametrize(("zone", "case"), CASES)
def test_suite(zone, case):
    """Every case of the published suite comes to its (preferred) result and explanation."""
    wanted = case["result"]
    outcome = Zone(zone).run(check(case["host"], case["helo"], case["mailfrom"]))
    assert outcome.result == (wanted if isinstance(wanted, str) else wanted[0]), outcome
    if "explanation" in case:
        said = case["explanation"]
        assert outcome.explanation == ("" if said == "DEFAULT" else said)


RESULTS = {"none", "neutral", "pass", "fail", "softfail", "temperror", "permerror"}


def check_one(zone: dict[str, list[Any]], client: str = "192.0.2.1", **more: str) -> Spf:
    said = {"helo": "mail.example.com", "mail_from": "a@example.com"} | more
    return Zone(zone).run(check(client, said["helo"], said["mail_from"]))


def spf(record: str) -> list[Any]:
    return [{"TXT": record}]


def test_hostile_records_ask_little():
    """Ten MX of ten hosts each, and an explanation of many macros, stay within the bound."""
    terms = " ".join(f"mx:m{n}.example.com" for n in range(MAX_TERMS))
    data: dict[str, list[Any]] = {
        "example.com": spf(f"v=spf1 {terms} -all exp=%{{p}}.example.com"),
        "1.2.0.192.in-addr.arpa": [{"PTR": f"p{n}.example.net"} for n in range(100)],
    }
    for n in range(MAX_TERMS):
        hosts = [f"h{n}-{m}.example.com" for m in range(MAX_HOSTS)]
        data[f"m{n}.example.com"] = [{"MX": [0, host]} for host in hosts]
        data |= {host: [{"A": "198.51.100.1"}] for host in hosts}
    zone = Zone(data)
    outcome = zone.run(check("192.0.2.1", "mail.example.com", "a@example.com"))
    assert outcome.result == "fail"
    assert len(zone.asked) <= 1 + MAX_TERMS * (1 + MAX_HOSTS) + 12


def test_a_failed_look_up_is_temporary():
    """Whatever term needed it: a message is never refused because a server was away."""
    for term in ("a", "mx", "exists", "include"):
        record = f"v=spf1 {term}:x.example.com -all"
        zone: dict[str, list[Any]] = {"example.com": spf(record), "x.example.com": ["TIMEOUT"]}
        assert check_one(zone).result == "temperror", term
    zone = {"example.com": [*spf("v=spf1 mx -all"), {"MX": [0, "error.x"]}]}
    assert check_one(zone).result == "temperror"


def test_void_by_term():
    """Hosts of an MX without an address of the client's kind are no void look-ups."""
    hosts = [{"MX": [n, f"h{n}.example.com"]} for n in range(4)]
    zone = {"example.com": spf("v=spf1 mx ip6:2001:db8::/32 -all") + hosts}
    zone |= {f"h{n}.example.com": [{"A": "192.0.2.7"}] for n in range(4)}
    assert check_one(zone, "2001:db8::1").result == "pass"


def test_a_domain_outside_ascii():
    """A Unicode domain is asked for by its A-labels, those of IDNA 2008."""
    zone = {"xn--bcher-kva.example": spf("v=spf1 +all")}
    zone |= {"xn--strae-oqa.example": spf("v=spf1 +all"), "strasse.example": spf("v=spf1 -all")}
    assert check_one(zone, mail_from="a@bücher.example").result == "pass"
    assert check_one(zone, mail_from="a@straße.example").result == "pass"
    assert check_one(zone, mail_from="a@a\u200db.example").result == "none"


def test_an_explanation_is_cut():
    """A domain does not choose how much it says."""
    zone = {
        "example.com": spf("v=spf1 -all exp=x.example.com"),
        "x.example.com": spf("%{s}" * 2000),
    }
    assert len(check_one(zone).explanation) == MAX_EXPLANATION


@pytest.mark.parametrize(
    "term",
    [
        "a:" + "a" * 7_900 + "!",
        "a:" + "a-" * 3_900 + "!",
        "a:" + "a." * 3_900 + "!",
        "exists:" + "%{sr-}." * 1_100 + "com",
        "a" + "/1" * 3_900,
        "ip6:" + ":" * 7_900,
        "exists:%{s" + "9" * 7_900 + "}",
        "x=" + "%{s}" * 1_900,
    ],
)
def test_a_long_term(term):
    """The longest record that is read is read in linear time."""
    assert len(term) < MAX_RECORD - 20
    outcome = check_one({"example.com": spf(f"v=spf1 {term} -all")}, mail_from="a-" * 100 + "@b.c")
    assert outcome.result in RESULTS
    outcome = check_one({"example.com": spf(f"v=spf1 {term} -all")})
    assert outcome.result in {"permerror", "fail"}
    assert len(outcome.detail) <= 1000


def test_a_record_that_is_too_long():
    """It is not read; nor is an explanation."""
    assert check_one({"example.com": spf("v=spf1 " + " " * MAX_RECORD + "+all")}).result == (
        "permerror"
    )
    zone = {
        "example.com": spf("v=spf1 -all exp=x.example.com"),
        "x.example.com": spf("a" * (MAX_RECORD + 1)),
    }
    assert check_one(zone) == check_one({**zone, "x.example.com": []})


def test_macros_cost_little():
    """Records full of macros, as many as may be, are expanded in a moment."""
    term = "exists:" + "%{sr+-}" * 1_100 + ".x"
    zone: dict[str, list[Any]] = {
        f"n{number}.example.com": spf(f"v=spf1 {term} redirect=n{number + 1}.example.com")
        for number in range(12)
    }
    began = time.process_time()
    sender = "a-b+" * 16 + "@n0.example.com"
    assert check_one(zone, mail_from=sender).result == "permerror"
    assert time.process_time() - began < 1


PIECES = st.sampled_from(
    [
        *("a", "mx", "ptr", "exists", "include", "all", "ip4", "ip6", "redirect", "exp"),
        *("%{", "}", "%{s}", "%{p}", "%{ir}", "%{l1r-}", ".example.com", "192.0.2.1", "2001:db8::"),
        *(" ", ":", "/", "=", "-", "+", "~", "?", "32", "0", "%%", "\x00", "\xff", "{", "."),
    ]
)


@given(
    st.lists(PIECES, max_size=20).map("".join),
    st.one_of(st.text(max_size=20), st.just("a@example.com")),
    st.sampled_from(["192.0.2.1", "2001:db8::1", "::ffff:192.0.2.1"]),
)
def test_never_raises(terms, mail_from, client):
    """Whatever records, senders and names hold, there is a result."""
    zone = {"example.com": [*spf(f"v=spf1 {terms}"), {"A": "192.0.2.9"}, {"MX": [1, "x.y"]}]}
    assert check_one(zone, client, mail_from=mail_from, helo=mail_from).result in RESULTS
