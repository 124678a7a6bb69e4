"""What the world would say to a message: SPF, DKIM and DMARC in one.

Two halves, for two processes.

    evidence = examine(raw)           in the parser, which may be killed: linear in the message
    verdict = judge(evidence, …)      in the relay, which asks the DNS: bounded by limits

Nothing of the message crosses but its evidence (`relay.checks.evidence`), and nothing that `judge`
does grows with the message.  `judge` is a generator: `relay.dns.resolver.Resolver.drive` runs it.

Promises: it never raises for what a message or the DNS holds.

SPF is `none` for mail from this machine and for mail whose client is not known: nobody can say what
the world would see.

Pure.
"""

from __future__ import annotations

from typing import NamedTuple

from relay.checks import dkim, dmarc, spf
from relay.checks.details import in_one_line
from relay.checks.evidence import Evidence
from relay.dns.questions import Asking
from relay.ip import ip_address


class Check(NamedTuple):
    """One of the three: a result in the words of RFC 8601, and the reason in a sentence."""

    result: str
    detail: str


class Verdict(NamedTuple):
    """All three."""

    spf: Check
    dkim: Check
    dmarc: Check

    def as_dict(self) -> dict[str, dict[str, str]]:
        """`{spf, dkim, dmarc: {result, detail}}`."""
        return {name: check._asdict() for name, check in self._asdict().items()}


def judge(
    evidence: Evidence,
    *,
    client: str | None,
    helo: str,
    mail_from: str,
    at: float,
    receiver: str = "unknown",
) -> Asking[Verdict]:
    """Ask the DNS and say what the world would.

    `client`: the IP address that the mail came from (None: not known), `helo` and `mail_from` (no
    angle brackets) what it said; `at`: when, in seconds since 1970; `receiver`: this host's name.
    """
    by_spf = yield from _spf(client, helo, mail_from, receiver, at)
    signatures = []
    for prepared in evidence.signatures:
        signatures.append((yield from dkim.verify(prepared, at)))
    by_dmarc = yield from dmarc.check(evidence.author, by_spf, signatures)
    return Verdict(
        Check(by_spf.result, _with_explanation(by_spf)),
        _joined(signatures),
        Check(by_dmarc.result, by_dmarc.detail),
    )


def _spf(
    client: str | None, helo: str, mail_from: str, receiver: str, at: float
) -> Asking[spf.Spf]:
    if client is None:
        return spf.Spf("none", "", "the mail came from this machine, or nothing tells from where")
    try:
        address = ip_address(client)
    except ValueError:
        return spf.Spf("none", "", "the client has no IP address")
    if address.is_loopback:
        return spf.Spf("none", "", "the mail came from this machine")
    return (yield from spf.check(client, helo, mail_from, receiver=receiver, now=lambda: at))


def _with_explanation(by_spf: spf.Spf) -> str:
    if not by_spf.explanation:
        return by_spf.detail
    return f"{by_spf.detail}; {by_spf.domain} says: {by_spf.explanation}"


_BEST_FIRST = ("pass", "temperror", "fail", "neutral", "permerror")


def _joined(signatures: list[dkim.Signature]) -> Check:
    """One result for all signatures: the best; and what is to be said of each, that one first."""
    if not signatures:
        return Check("none", "the message has no DKIM signature")
    ordered = sorted(signatures, key=lambda one: _BEST_FIRST.index(one.result))
    said = "; ".join(
        one.detail if one.result == "pass" else f"{one.domain or 'a signature'}: {one.detail}"
        for one in ordered
    )
    return Check(ordered[0].result, in_one_line(said, 2000))
