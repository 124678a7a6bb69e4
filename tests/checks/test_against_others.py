"""Our verdicts on generated mail, beside those of verifiers that others wrote.

dkimpy looks at DKIM, mailauth at DKIM, SPF and DMARC.  A difference is one of those named here,
each with the RFC that has us say what we do, or it is a fault.
"""

from __future__ import annotations

import base64
import json
import logging
import shutil
import subprocess
import time
from collections import Counter
from pathlib import Path
from typing import Any

import dkim
import pytest

from relay.checks.dkim import Signature, verify
from relay.checks.evidence import examine
from relay.checks.verdict import Check, judge
from relay.dns.questions import Answer
from tests.checks.asking import answered
from tests.checks.generated import Case, cases
from tests.npm import node_modules

HERE = Path(__file__).parent / "mailauth"

BY_THE_RFC = {
    "expired": "RFC 6376, 3.5: a signature past x= may be taken for invalid, and is",
    "i": "RFC 6376, 6.1.1: i= outside d= is PERMFAIL",
    "from": "RFC 6376, 5.4: From must be signed",
    "l": "RFC 6376, 3.5: l= must not exceed the body",
    "l=0": "RFC 6376, 3.5: l=0 signs no body; mailauth takes it for no l=",
    "unended": "RFC 6376, 3.4.4: white space at the end of a line counts for nothing, and the last"
    " line is one without its CRLF, too",
    "strict": "RFC 7489, 3.1: strict is the same name; mailauth compares registrable domains",
    "policies": "RFC 7489, 6.6.3, step 5: several policies end it; mailauth asks the domain above",
    "temporary": "RFC 7489, 6.6.2: what a temporary error of an aligned signature means is the"
    " receiver's to say: we say that nothing is known, mailauth that it fails",
    "q": "RFC 6376, 3.5: a query method that is not known cannot be used",
    "sha1": "RFC 8301, 3.1: rsa-sha1 must not be used for verifying",
    "s": "RFC 6376, 3.6.1: a key whose s= does not name email is not for it",
    "h": "RFC 6376, 3.6.1: a key whose h= does not name the algorithm is not for it",
    "t=s": "RFC 6376, 3.6.1: with t=s, i= must be d= itself",
    "twice": "RFC 6376, 3.2: tags must not occur twice",
}


def ours(case: Case) -> list[Signature]:
    evidence = examine(case.raw)
    return [answered(verify(one, time.time()), case.zone) for one in evidence.signatures]


def exception(case: Case, one: Signature) -> str:
    """The rule by which our result of a signature may be another than theirs; empty: none."""
    if not one.selector:  # its tags could not be read
        assert one.result == "permerror"
        assert "twice" in case.odd.values(), case.said
        return "twice"
    if rule := case.odd.get(one.selector):
        assert one.result in {"permerror", "fail", "temperror"}, f"{case.said}: {one}"
        return rule
    if "(l=) that has" in one.detail:
        assert one.result == "permerror"
        return "l"
    if case.raw[-1:] in (b" ", b"\t"):
        return "unended"
    return ""


def test_dkimpy():
    """Of 400 messages, every RSA signature is valid to both or to neither, or the RFC says why."""
    logging.getLogger("dkimpy").setLevel(logging.CRITICAL)
    seen: Counter[bool] = Counter()
    for case in cases(400, seed=1):
        for index, one in enumerate(ours(case)):
            if exception(case, one) or case.keys[one.selector] == "ed25519":
                continue
            valid = _valid_to_dkimpy(case, index)
            assert (one.result == "pass") == valid, f"{case.said}: {one}"
            seen[valid] += 1
    assert min(seen[True], seen[False]) > 50, seen


def _valid_to_dkimpy(case: Case, index: int) -> bool:
    verifier = dkim.DKIM(case.raw, logger=logging.getLogger("dkimpy"))
    try:
        return bool(verifier.verify(index, dnsfunc=lambda name, **_: _txt(case, name)))
    except dkim.DKIMException:
        return False


def _txt(case: Case, name: bytes) -> bytes | None:
    held = case.zone.get((name.decode().lower().removesuffix("."), "TXT"))
    if isinstance(held, Answer):
        raise dkim.DnsTimeoutError
    return held.encode() if isinstance(held, str) else None


@pytest.mark.clients
@pytest.mark.timeout(600)
def test_mailauth():
    """Of 2,000 messages, all three verdicts are those of mailauth, or the RFC says why not."""
    node = shutil.which("node")
    if node is None:
        pytest.skip("node is not installed")
    modules = node_modules(HERE)
    generated = list(cases(2000, seed=2))
    finished = subprocess.run(
        [node, str(HERE / "verify.js")],
        input="".join(_line(case) for case in generated).encode(),
        capture_output=True,
        env={"NODE_PATH": str(modules)},
        timeout=500,
        check=True,
    )
    theirs = [json.loads(line) for line in finished.stdout.splitlines()]
    assert len(theirs) == len(generated)
    compared = Comparison()
    for case, other in zip(generated, theirs, strict=True):
        compared.add(case, other)
    assert not compared.differences, "\n".join(compared.differences[:20])
    for word in (
        *("dkim pass", "dkim neutral", "dkim fail", "spf pass", "spf fail"),
        *("dmarc pass", "dmarc fail", "dmarc none"),
    ):
        assert compared.same[word] > 100, compared.same
    assert set(compared.excepted) <= set(BY_THE_RFC)
    assert {"l", "l=0", "strict", "policies", "sha1", "s", "i"} <= set(compared.excepted)


def _line(case: Case) -> str:
    zone: dict[str, list[str] | None] = {}
    for (name, kind), held in case.zone.items():
        if isinstance(held, Answer):
            zone[f"{name}/{kind}"] = None
        else:
            zone[f"{name}/{kind}"] = [held] if isinstance(held, str) else held
    said = {
        "raw": base64.b64encode(case.raw).decode(),
        "zone": zone,
        "ip": case.client,
        "helo": case.helo,
        "sender": case.mail_from,
    }
    return json.dumps(said) + "\n"


class Comparison:
    """What was the same, what differs by a rule, and what differs without one."""

    def __init__(self) -> None:
        self.same: Counter[str] = Counter()
        self.excepted: Counter[str] = Counter()
        self.differences: list[str] = []

    def add(self, case: Case, other: dict[str, Any]) -> None:
        signatures = ours(case)
        verdict = answered(
            judge(
                examine(case.raw),
                client=case.client,
                helo=case.helo,
                mail_from=case.mail_from,
                at=time.time(),
            ),
            case.zone,
        )
        theirs = {one["selector"]: one["result"] for one in other["dkim"]}
        moved = ""  # by which rule a signature differs, on which DMARC may rest
        for one in signatures:
            rule = exception(case, one)
            if not one.selector:  # so none of theirs is known to be it
                self.excepted[rule] += 1
                moved = rule
                continue
            other_result = theirs.get(one.selector, "skipped")
            same = (one.result == "pass") == (other_result == "pass")
            if not rule and case.lengths[one.selector] == 0:
                rule = "l=0"
            if not same:
                moved = rule
            self._note("dkim", case, one, other_result, same=same, rule=rule)
        self._note("spf", case, verdict.spf, other["spf"], same=verdict.spf.result == other["spf"])
        by_dmarc = verdict.dmarc
        same = by_dmarc.result == other["dmarc"]
        rule = self._dmarc_rule(case, by_dmarc.result, other, signatures) or moved
        self._note("dmarc", case, by_dmarc, other["dmarc"], same=same, rule=rule)

    def _note(
        self,
        kind: str,
        case: Case,
        one: Signature | Check,
        other: str,
        *,
        same: bool,
        rule: str = "",
    ) -> None:
        if same:
            self.same[f"{kind} {other}"] += 1
        elif rule:
            self.excepted[rule] += 1
        else:
            self.differences.append(f"{kind}: {case.said}: {one}, {other}")

    def _dmarc_rule(
        self, case: Case, result: str, other: dict[str, Any], signatures: list[Signature]
    ) -> str:
        said = [held for (name, _), held in case.zone.items() if name.startswith("_dmarc.")]
        if result == "none" and any(isinstance(held, list) for held in said):
            return "policies"
        if other["dmarc"] == "pass" and any("=s" in held for held in said if isinstance(held, str)):
            return "strict"
        failed = any(one.result == "temperror" for one in signatures)
        if (result, other["dmarc"]) == ("temperror", "fail") and failed:
            return "temporary"
        return ""
