"""DMARC (RFC 7489): does what SPF or DKIM vouch for belong to the domain that From shows?

The second half: `relay.checks.author` read From out of the message.  `check` asks the DNS for the
policy and compares, in the relay.

Promises
- Two look-ups at most: the domain, then its organisational domain.
- It never raises for what a record holds.

How it ends: `pass`, `fail`, `none` (the domain publishes no policy, or more than one), `permerror`
(From or the policy cannot be used) or `temperror` (the DNS gave no answer that would decide it).
`pct` is left out of account: it thins out what receivers do, not what is true of a message.

The organisational domain is the registrable one by the public suffix list, as the installed version
of `publicsuffixlist` has it, private suffixes (github.io) included; reading the list takes a tenth
of a second, once: whoever must not wait calls `organisational_domain` in a thread before.

Pure.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from functools import cache
from typing import NamedTuple

from publicsuffixlist import PublicSuffixList

from relay.checks.author import Author
from relay.checks.details import in_one_line
from relay.checks.dkim import Signature
from relay.checks.spf import Spf
from relay.dns.questions import Asking, Question, Status, is_name

_POLICIES = ("none", "quarantine", "reject")
_VERSION = re.compile(r"v[ \t]*=[ \t]*DMARC1[ \t]*(?:;|\Z)")
_URI = re.compile(r"[a-z][a-z0-9+.-]*:[^\s,!]+(?:![0-9]+[kmgt]?)?", re.IGNORECASE)


class Dmarc(NamedTuple):
    """What DMARC says: see the module for `result`.

    `domain`: of From; `policy`: what it asks receivers to do with mail that fails (none,
    quarantine, reject), or empty.
    """

    result: str
    domain: str
    policy: str
    detail: str


def check(author: Author, spf: Spf, signatures: Iterable[Signature]) -> Asking[Dmarc]:
    """Compare what SPF and DKIM vouch for with From, by the policy that its domain publishes."""
    domain = author.domain
    if author.error:
        return Dmarc("permerror", "", "", author.error)
    organisation = organisational_domain(domain)
    records: list[str] = []
    for name in dict.fromkeys((domain, organisation)):
        where = f"_dmarc.{name}"
        if not is_name(where):
            continue
        answer = yield Question(where, "TXT")
        if answer.status is Status.FAILED:
            said = in_one_line(f"the policy at {where}: {answer.detail}")
            return Dmarc("temperror", domain, "", said)
        records = [text for text in answer.records if _VERSION.match(text)]
        if records:
            break
    else:
        return Dmarc("none", domain, "", f"{organisation} publishes no DMARC policy")
    if len(records) > 1:
        return Dmarc("none", domain, "", f"{where} holds {len(records)} policies, so none counts")
    tags = _tags(records[0])
    policy = _policy(tags, inherited=name != domain)
    if not policy:
        return Dmarc("permerror", domain, "", f"the policy at {where} has no valid p=")
    result, detail = _compare(domain, tags, spf, list(signatures))
    if result == "fail":
        detail += f"; {where} asks receivers to {_WISHES[policy]}"
    return Dmarc(result, domain, policy, in_one_line(detail))


_WISHES = {
    "none": "do nothing about it (p=none)",
    "quarantine": "put it aside (p=quarantine)",
    "reject": "refuse it (p=reject)",
}


def _compare(
    domain: str, tags: dict[str, str], spf: Spf, signatures: Sequence[Signature]
) -> tuple[str, str]:
    strict_spf = tags.get("aspf", "").lower() == "s"
    strict_dkim = tags.get("adkim", "").lower() == "s"
    aligned = [one for one in signatures if _aligned(one.domain, domain, strict=strict_dkim)]
    spf_aligned = _aligned(spf.domain, domain, strict=strict_spf)
    for one in aligned:
        if one.result == "pass":
            return "pass", f"the DKIM signature of {one.domain} is aligned with {domain}"
    if spf_aligned and spf.result == "pass":
        return "pass", f"SPF passes for {spf.domain}, which is aligned with {domain}"
    temporary = [f"DKIM: {one.detail}" for one in aligned if one.result == "temperror"]
    if spf_aligned and spf.result == "temperror":
        temporary.append(f"SPF: {spf.detail}")
    if temporary:
        return "temperror", temporary[0]
    passed = [f"DKIM passes for {one.domain}" for one in signatures if one.result == "pass"]
    if spf.result == "pass":
        passed.append(f"SPF passes for {spf.domain}")
    if passed:
        return "fail", f"{'; '.join(passed[:3])}; none of it is aligned with {domain}"
    return "fail", f"neither SPF ({spf.result}) nor DKIM vouches for {domain}"


def _aligned(vouched: str, domain: str, *, strict: bool) -> bool:
    vouched = vouched.lower()
    if not vouched:
        return False
    if strict:
        return vouched == domain
    return organisational_domain(vouched) == organisational_domain(domain)


def organisational_domain(domain: str) -> str:
    """The registrable domain above a name (or the name, where it is a public suffix itself)."""
    return _suffixes().privatesuffix(domain) or domain


@cache
def _suffixes() -> PublicSuffixList:
    return PublicSuffixList()


def _tags(record: str) -> dict[str, str]:
    """The tags of a record; of one that is there twice the first, what is malformed left out."""
    tags: dict[str, str] = {}
    for part in record.split(";"):
        name, equals, value = part.partition("=")
        if equals:
            tags.setdefault(name.strip().lower(), value.strip())
    return tags


def _policy(tags: dict[str, str], *, inherited: bool) -> str:
    """What the record asks for; empty where it cannot be used (RFC 7489, 6.6.3)."""
    said = tags.get("p", "").lower()
    below = tags.get("sp", said).lower()
    if said not in _POLICIES or below not in _POLICIES:
        reported = any(_URI.fullmatch(uri.strip()) for uri in tags.get("rua", "").split(","))
        return "none" if reported else ""
    return below if inherited else said
