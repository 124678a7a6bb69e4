"""What a domain publishes for its mail, beside what it should: MX, SPF, DKIM, DMARC and the rest.

Each function is a generator that yields what it has to ask the DNS and is sent the answers
(`relay.dns.questions`); `relay.http.probes.domain_checks` drives them.  What is said of each record
is an `Entry`: what was found, what is wanted, ready to be published, and whether that will do.

Promises
- What the DNS did not answer (SERVFAIL, nobody in time) is not called wrong: `ok` is None, and the
  detail says why.  Nothing is wanted then: what is published beside what is there may undo it.
- What is right is wanted as it is, however it is spelt; only what is not is wanted otherwise.
- All that is wanted can be published as it stands: nothing that is right by itself is made wrong by
  it, and no address is named for reports that this relay would refuse.
- It never raises for what a domain publishes.

Pure.
"""

from __future__ import annotations

import enum
import re
from collections.abc import Collection, Generator, Iterable, Sequence
from typing import NamedTuple

from relay.checks import spf, sts
from relay.checks.details import in_one_line, quoted
from relay.checks.dmarc import organisational_domain
from relay.checks.tags import Unusable, decoded, parse, text
from relay.dns.questions import Answer, Asking, Proof, Question, RecordType, Status, is_name
from relay.ip import ip_address

POLICY_AGE = 604_800
"""Seconds for which a policy of MTA-STS that is proposed may be kept: a week."""
_MAX_HOSTS = 20
_NOBODY = "240.0.0.1"  # no client has it: every term of a record of SPF is looked at
_SPF = re.compile(r"v=spf1(?: |\Z)", re.IGNORECASE)
_DMARC = re.compile(r"v[ \t]*=[ \t]*DMARC1[ \t]*(?:;|\Z)")
_REPORTS = re.compile(r"v=TLSRPTv1\s*;")
_REPORTS_TO = re.compile(r";\s*rua\s*=\s*(?:mailto:[^\s@;,]+@[^\s;,]+|https://[^\s;,]+)")

INCLUDES = {
    "amazonaws.com": "amazonses.com",
    "mailgun.org": "mailgun.org",
    "postmarkapp.com": "spf.mtasv.net",
    "sendgrid.net": "sendgrid.net",
    "gmail.com": "_spf.google.com",
    "google.com": "_spf.google.com",
    "office365.com": "spf.protection.outlook.com",
    "outlook.com": "spf.protection.outlook.com",
}
"""Providers whose mail leaves from elsewhere than it is handed to: by the end of the name of their
servers, the domain that their customers' records are told to include."""


class Entry(NamedTuple):
    """One record; `ok` is None where nobody can say, and `detail` says why it is as it is.

    `found` and `wanted` are texts as a zone file has them, a line for each record, without the
    quotes; None: there is nothing, or nothing to publish.
    """

    record: str
    name: str
    type: str
    found: str | None
    wanted: str | None
    ok: bool | None
    detail: str = ""
    optional: bool = False
    """Mail goes without it: to publish what is missing is advice."""


class Key(NamedTuple):
    """A key of DKIM whose record is to be there."""

    name: str
    record: str
    state: str


def _entry(
    record: str,
    question: Question,
    found: Sequence[str],
    wanted: str | None,
    ok: bool | None,
    detail: str,
) -> Entry:
    shown = "\n".join(in_one_line(one, 4096) for one in found) or None
    return Entry(record, question.name, question.type, shown, wanted, ok, in_one_line(detail))


_NOT_PUBLIC = re.compile(
    r"(?:.*\.)?(localhost|local|internal|invalid|onion|alt|test|home\.arpa)", re.IGNORECASE
)
"""Names that the public DNS never has (RFC 6761, 6762, 7686, 8375, 9476, and ICANN's `internal`).
`example` is for documentation alone, and asked about like any other."""


def not_public(domain: str) -> Entry | None:
    """What there is to say of a domain that cannot publish anything; None of any other."""
    found = _NOT_PUBLIC.fullmatch(domain)
    if found is None:
        return None
    said = (
        f"names that end in {found[1].lower()} are not public: there is nothing to publish, and no "
        "mail comes from or goes to other servers by this name"
    )
    return Entry("Domain", domain, "", None, None, None, said)


def _unknown(record: str, question: Question, answer: Answer) -> Entry:
    return _entry(record, question, (), None, None, f"the DNS gave no answer: {answer.detail}")


# ------------------------------------------------------------------------------- MX


class Exchanges(NamedTuple):
    """What the MX records say: the entry, and the hosts; none: nobody knows or there are none."""

    entry: Entry
    hosts: tuple[str, ...]
    own: str = ""
    """Which of them is this relay; empty: none, as far as is known."""


class Use(enum.Enum):
    """What mail that comes to a domain is to this relay."""

    OTHERS = enum.auto()
    """Not its own, as far as it knows: others receive it."""
    MAILBOXES = enum.auto()
    """It goes into mailboxes of this relay."""
    RETURN_PATHS = enum.auto()
    """Bounces, which this relay has to get."""


class Here(NamedTuple):
    """What this relay is called and where it is reached, as far as it knows."""

    names: Collection[str] = ()
    """In small letters."""
    addresses: Collection[str] = ()
    """Public ones, where it takes mail from others."""


def mx(domain: str, host: str | None, here: Here, use: Use) -> Asking[Exchanges]:
    """Where mail to the domain goes; `host`: this relay's name, if it receives the domain's."""
    question = Question(domain, "MX")
    wanted = f"10 {host}." if host and use is not Use.OTHERS else None
    answer = yield question
    if answer.status is Status.FAILED:
        return Exchanges(_unknown("MX", question, answer), ())
    if not answer.records:
        return Exchanges((yield from _no_mx(question, wanted)), ())

    def entry(wanted: str | None, ok: bool | None, detail: str) -> Entry:
        return _entry("MX", question, records, wanted, ok, detail)

    ordered = sorted(answer.records, key=_preference)[:_MAX_HOSTS]
    hosts = tuple(record.partition(" ")[2].lower() for record in ordered)
    records = [
        f"{_preference(record)} {name}." for record, name in zip(ordered, hosts, strict=True)
    ]
    if "." in hosts or "" in hosts:
        records = ["0 ."] if len(hosts) == 1 else records
        said = "the domain takes no mail (null MX): neither replies nor bounces arrive"
        return Exchanges(entry(wanted, False, said), ())
    doubt = ""
    own = ""
    for name in hosts:
        addresses = yield from _addresses(name)
        if name in here.names or set(addresses or ()) & set(here.addresses):
            own = own or name
        if addresses is None:
            doubt = doubt or f"the DNS gave no answer about the addresses of {name}"
        elif not addresses:
            return Exchanges(entry(wanted, False, f"{name} has no address"), hosts, own)
    if own and use is Use.OTHERS:
        said = (
            f"it leads to {own}, this relay, which takes no mail for the domain: "
            "RELAY_SMTP__DOMAINS lacks it"
        )
        return Exchanges(entry(None, False, said), hosts, own)
    if doubt:
        return Exchanges(entry(None, None, doubt), hosts, own)
    if not own and use is Use.RETURN_PATHS:
        said = f"whether {hosts[0]} is this relay, to which bounces have to come, nobody can say"
        return Exchanges(entry(None, None, said), hosts)
    said = "each of its hosts has an address"
    if own:
        said += f"; {own} is this relay"
    return Exchanges(entry(None, True, said), hosts, own)


def _no_mx(question: Question, wanted: str | None) -> Asking[Entry]:
    addresses = yield from _addresses(question.name)
    if addresses is None:
        said = "there is no MX, and the DNS gave no answer about the addresses of the domain"
        return _entry("MX", question, (), None, None, said)
    if addresses:
        said = "there is no MX: mail goes to the domain's own address, which some do not try"
    else:
        said = "there is no MX, and no address: neither replies nor bounces arrive"
    return _entry("MX", question, (), wanted, False, said)


def _preference(record: str) -> int:
    number = record.partition(" ")[0]
    return int(number) if number.isdecimal() else 0


def _addresses(name: str) -> Asking[list[str] | None]:
    """All addresses of a host, or None where nobody can say."""
    found: list[str] = []
    failed = False
    kinds: tuple[RecordType, ...] = ("A", "AAAA")
    for kind in kinds:
        answer = yield Question(name, kind)
        failed = failed or answer.status is Status.FAILED
        found += answer.records
    return None if failed and not found else found


# ------------------------------------------------------------------------------ SPF


def sender_policy(
    domain: str, helo: str, upstreams: Sequence[str], sources: Sequence[str]
) -> Asking[Entry]:
    """Whether what the domain publishes lets its mail leave the way that it does.

    `upstreams`: the hosts that mail is handed to; `sources`: the addresses from which it is
    delivered directly.
    """
    question = Question(domain, "TXT")
    terms, doubts = yield from _terms(upstreams, sources)
    answer = yield question
    if answer.status is Status.FAILED:
        return _unknown("SPF", question, answer)
    records = [record for record in answer.records if _SPF.match(record)]
    if not records:
        wanted = None if doubts else _policy("", terms)
        return _entry("SPF", question, (), wanted, False, "there is no record of SPF")
    if len(records) > 1:
        terms = [term for record in records for term in record.split()[1:] if not _is_all(term)]
        said = f"there are {len(records)} records of SPF, so none counts: join them"
        wanted = _policy("", list(dict.fromkeys(terms)))
        return _entry("SPF", question, records, wanted, False, said)
    asked: list[str] = []
    said_of_nobody = yield from _noting(spf.check(_NOBODY, helo, f"postmaster@{domain}"), asked)
    if said_of_nobody.result == "permerror":
        return _entry("SPF", question, records, None, False, said_of_nobody.detail)
    if said_of_nobody.result == "temperror":
        return _entry("SPF", question, records, None, None, said_of_nobody.detail)
    if said_of_nobody.result == "pass":
        wanted = _policy("", [term for term in records[0].split()[1:] if not _is_all(term)])
        said = "it lets everybody send for the domain"
        return _entry("SPF", question, records, wanted, False, said)
    missing: list[str] = []
    for term in terms:
        if term.startswith("include:"):
            if term.removeprefix("include:") not in asked:
                missing.append(term)
            continue
        passes = yield from _lets_in(term, domain, helo)
        if passes is None:
            doubts.append(f"the DNS gave no answer about {term}")
        elif not passes:
            missing.append(term)
    if missing:
        said = f"it does not let in {', '.join(missing)}"
        return _entry("SPF", question, records, _policy(records[0], missing), False, said)
    if doubts:
        return _entry("SPF", question, records, None, None, doubts[0])
    said = "it lets in where mail leaves from, as far as is known here"
    if not terms:
        said = "it can be used; where mail leaves from is not known here"
    return _entry("SPF", question, records, None, True, said)


def beside(entry: Entry, return_paths: str) -> Entry:
    """What is said of the SPF of an author's domain, where mail leaves with others' return paths.

    Receivers ask for the record of the latter; what is wrong with this one is advice.
    """
    if entry.ok:
        return entry
    said = f"{entry.detail}; what counts is that of return paths, at {return_paths}"
    return entry._replace(detail=said, optional=True)


def _terms(upstreams: Sequence[str], sources: Sequence[str]) -> Asking[tuple[list[str], list[str]]]:
    """The terms that let in where mail leaves from, and what is doubtful about them."""
    terms: list[str] = []
    doubts: list[str] = []
    for address in sources:
        terms.append(f"ip{ip_address(address).version}:{address}")
    for host in upstreams:
        provider = next((end for end in INCLUDES if f".{host}".endswith(f".{end}")), "")
        if provider:
            terms.append(f"include:{INCLUDES[provider]}")
            continue
        try:
            terms.append(f"ip{ip_address(host).version}:{host}")
        except ValueError:
            addresses = yield from _addresses(host)
            if addresses is None:
                doubts.append(f"the DNS gave no answer about the addresses of {host}")
            else:
                terms.append(f"a:{host}")
    return list(dict.fromkeys(terms)), doubts


def _lets_in(term: str, domain: str, helo: str) -> Asking[bool | None]:
    """Whether all addresses that a term of `_terms` stands for pass; None: nobody can say."""
    kind, _, value = term.partition(":")
    addresses: list[str] | None = [value]
    if kind == "a":
        addresses = yield from _addresses(value)
    if not addresses:
        return None
    for address in addresses:
        said = yield from spf.check(address, helo, f"postmaster@{domain}")
        if said.result == "temperror":
            return None
        if said.result != "pass":
            return False
    return True


def _noting(asking: Asking[spf.Spf], asked: list[str]) -> Generator[Question, Answer, spf.Spf]:
    """`asking`, with the names whose TXT records it asked for in `asked`."""
    try:
        question = next(asking)
        while True:
            if question.type == "TXT":
                asked.append(question.name.lower())
            question = asking.send((yield question))
    except StopIteration as stop:
        said: spf.Spf = stop.value
        return said


def _policy(record: str, terms: Sequence[str]) -> str:
    """A record with further terms in front of its `all` or redirect; a new one for an empty one."""
    words = record.split()[1:]
    if not record and not terms:
        terms = ("mx",)  # what receives the domain's mail may send it
    last = [word for word in words if _is_all(word) or word.lower().startswith("redirect=")]
    others = [word for word in words if word not in last]
    return " ".join(["v=spf1", *others, *terms, *(last or ["~all"])])


def _is_all(term: str) -> bool:
    return term.lower().lstrip("+-~?") == "all"


# ----------------------------------------------------------------------------- DKIM


def dkim(key: Key) -> Asking[Entry]:
    """Whether the record of a key is there, as it is to be."""
    question = Question(key.name, "TXT")
    answer = yield question
    state = f"of the {key.state} key"

    def entry(ok: bool, detail: str) -> Entry:
        wanted = None if ok else key.record
        return _entry("DKIM", question, answer.records, wanted, ok, detail)

    if answer.status is Status.FAILED:
        return _unknown("DKIM", question, answer)
    if not answer.records:
        return entry(False, f"there is no record {state}")
    if len(answer.records) > 1:
        return entry(False, f"there are {len(answer.records)} records {state}: one is to be there")
    try:
        same = _public(answer.records[0]) == _public(key.record)
    except Unusable as error:
        return entry(False, f"the record cannot be used: {error}")
    if not same:
        return entry(False, f"it is not the {key.state} key but another")
    said = f"it is the record {state}"
    if "y" in _flags(answer.records[0]):
        said += "; it says that the domain only tests DKIM (t=y)"
    return entry(True, said)


def no_keys(domain: str) -> Entry:
    """What is said of a domain without keys."""
    said = "this relay has no keys of the domain: `relay dkim create` makes them"
    return Entry("DKIM", f"_domainkey.{domain}", "TXT", None, None, False, said)


def _public(record: str) -> tuple[str, bytes]:
    """What a verifier takes from a record: the kind of the key, and the key."""
    said = parse(record.encode("latin-1", "replace"))
    if text(said, "v", "DKIM1") != "DKIM1":
        raise Unusable("it is no key of DKIM (v=)")
    if "sha256" not in text(said, "h", "sha256").lower().split(":"):
        raise Unusable("it is not for SHA-256 (h=)")
    if not {"*", "email"} & set(text(said, "s", "*").lower().split(":")):
        raise Unusable("it is not for mail (s=)")
    return text(said, "k", "rsa").lower(), decoded(said, "p")


def _flags(record: str) -> list[str]:
    return text(parse(record.encode("latin-1", "replace")), "t", "").lower().split(":")


# ---------------------------------------------------------------------------- DMARC


class Policy(NamedTuple):
    """The policy of DMARC that is published: what is said of it, and what it asks for."""

    entry: Entry
    asks: str = ""
    """None, quarantine or reject; empty: there is none that can be used."""
    strict: bool = False
    """Whether SPF is aligned by the very domain alone."""


def dmarc(domain: str) -> Asking[Policy]:
    """Which policy there is for mail of the domain; what is aligned by it, `aligned` says."""
    where = Question(f"_dmarc.{domain}", "TXT")
    organisation = organisational_domain(domain)
    question, records = where, list[str]()
    for name in dict.fromkeys((domain, organisation)):
        question = Question(f"_dmarc.{name}", "TXT")
        if not is_name(question.name):
            continue
        answer = yield question
        if answer.status is Status.FAILED:
            return Policy(_unknown("DMARC", question, answer))
        records = [record for record in answer.records if _DMARC.match(record)]
        if records:
            break
    if not records:
        return Policy(_entry("DMARC", where, (), None, False, "there is no policy"))
    if len(records) > 1:
        said = f"there are {len(records)} policies, so none counts"
        return Policy(_entry("DMARC", question, records, records[0], False, said))
    tags = {
        name.strip().lower(): value.strip().lower()
        for name, _, value in (part.partition("=") for part in reversed(records[0].split(";")))
    }
    inherited = question.name != where.name
    asks = tags.get("sp" if inherited and "sp" in tags else "p", "")
    if asks not in {"none", "quarantine", "reject"}:
        said = f"the policy p={quoted(asks)} is none: it is none, quarantine or reject"
        return Policy(_entry("DMARC", question, records, None, False, said))
    entry = _entry("DMARC", question, records, None, True, f"p={asks}")
    return Policy(entry, asks, tags.get("aspf") == "s")


def aligned(
    policy: Policy,
    domain: str,
    signatures: Iterable[Entry],
    sender: Entry,
    reports_to: str | None,
) -> Entry:
    """What is said of a policy, and of what it will find aligned of the domain's mail.

    `signatures`: of each key that signs; `sender`: SPF of the domain that mail has in MAIL FROM;
    `reports_to`: an address that takes reports, if one does.
    """
    entry = policy.entry
    if not policy.asks:
        if entry.ok is None or entry.wanted is not None:
            return entry
        wanted = "v=DMARC1; p=none"
        return entry._replace(
            wanted=wanted if reports_to is None else f"{wanted}; rua=mailto:{reports_to}"
        )
    signed = [one.ok for one in signatures]
    by = []
    if True in signed:
        by.append("signatures (d= is From's own domain)")
    same = _aligns(sender.name, domain, strict=policy.strict)
    if same and sender.ok:
        by.append("SPF")
    lacks = f"; not by SPF of {sender.name}" if not same or sender.ok is False else ""
    if by:
        found = f"{entry.detail}; aligned by {' and '.join(by)}"
        return entry._replace(detail=in_one_line(found + lacks, 4096))
    if None in signed or (same and sender.ok is None):
        said = "what aligns nobody can say"
        return entry._replace(ok=None, detail=f"{entry.detail}; {said}")
    said = "nothing aligns: no key whose record is there signs"
    return entry._replace(ok=False, detail=in_one_line(f"{entry.detail}; {said}{lacks}", 4096))


def _aligns(vouched: str, domain: str, *, strict: bool) -> bool:
    if strict:
        return vouched == domain
    return organisational_domain(vouched) == organisational_domain(domain)


# ------------------------------------------------------------------ MTA-STS, TLS-RPT


def mta_sts(domain: str) -> Asking[Entry]:
    """Whether the domain says that it has a policy (RFC 8461); `stated` is what to publish."""
    question = Question(f"_mta-sts.{domain}", "TXT")
    answer = yield question
    if answer.status is Status.FAILED:
        return _unknown("MTA-STS", question, answer)
    records = sts.records(answer.records)
    if len(records) == 1 and sts.id_of(records[0]):
        return _entry("MTA-STS", question, records, None, True, "the domain says it has a policy")
    if not records:
        said = "there is none; where it and its policy are, mail to the domain comes by TLS alone"
        return _entry("MTA-STS", question, (), None, False, said)._replace(optional=True)
    if len(records) > 1:
        said = f"there are {len(records)} records, so none counts"
    else:
        said = "it has no id= of letters and digits"
    return _entry("MTA-STS", question, records, None, False, said)


def stated(entry: Entry, policy: Entry, new_id: str) -> Entry:
    """What is said of the record, once it is known whether there is a policy for it to announce.

    Without one, the record would be wrong where none is merely missing.
    """
    if entry.ok is not False:
        return entry
    if policy.ok:
        return entry._replace(wanted=f"v=STSv1; id={new_id}")
    return entry._replace(detail=f"{entry.detail}; first its policy is to be there")


def sts_policy(
    domain: str, body: bytes | None, hosts: Sequence[str], trouble: str, *, known: bool = True
) -> Entry:
    """What the policy that was fetched says; `hosts`: those of the MX records.

    `body`: None where there is none, for `trouble`; `known`: whether that is certain.
    """
    lines = ["version: STSv1", "mode: testing", *(f"mx: {host}" for host in hosts)]
    proposed = "\n".join([*lines, f"max_age: {POLICY_AGE}"]) if hosts else None
    question = Question(sts.policy_url(domain), "TXT")

    def entry(ok: bool | None, detail: str) -> Entry:
        found = () if body is None else body.decode("utf-8", "replace").splitlines()
        wanted = proposed if ok is False else None
        made = _entry("MTA-STS policy", question, found, wanted, ok, detail)
        return made._replace(type="HTTPS")

    if body is None:
        return entry(False if known else None, trouble)
    try:
        policy = sts.parse(body)
    except Unusable as error:
        return entry(False, str(error))
    left = [host for host in hosts if not policy.allows(host)]
    if policy.mode is not sts.Mode.NONE and left:
        return entry(False, f"it leaves out {', '.join(left)}, where the MX records lead")
    return entry(True, f"mode {policy.mode}")


def tls_reports(domain: str) -> Asking[Entry]:
    """Whether the domain says where reports of TLS go (RFC 8460); see `reporting`."""
    question = Question(f"_smtp._tls.{domain}", "TXT")
    answer = yield question
    if answer.status is Status.FAILED:
        return _unknown("TLS-RPT", question, answer)
    records = [record for record in answer.records if _REPORTS.match(record)]
    if len(records) == 1 and _REPORTS_TO.search(records[0]):
        said = "reports of TLS to the domain have an address"
        return _entry("TLS-RPT", question, records, None, True, said)
    if not records:
        said = "there is none; with it, others report where mail to the domain could not use TLS"
        return _entry("TLS-RPT", question, (), None, False, said)._replace(optional=True)
    if len(records) > 1:
        said = f"there are {len(records)} records, so none counts"
    else:
        said = "it has no rua= that is mailto: or https:"
    return _entry("TLS-RPT", question, records, None, False, said)


def reporting(entry: Entry, domain: str, reports_to: str | None) -> Entry:
    """What is said of the record, where reports can go to this address, or to none."""
    if entry.ok is not False:
        return entry
    if reports_to is None:
        said = f"postmaster@{domain} is no mailbox here"
        return entry._replace(detail=f"{entry.detail}; {said}")
    return entry._replace(wanted=f"v=TLSRPTv1; rua=mailto:{reports_to}")


# ----------------------------------------------------------------------------- DANE

_UNBELIEVED = {
    "remote": "mail leaves without DANE: {0}, which is asked, is not on this machine",
    "unvalidated": "mail leaves without DANE: {0} does not validate what it answers",
    "silent": "whether {0} validates is not known: it says nothing of the root",
}


def dane(domain: str, proof: Proof) -> Entry:
    """Whether this relay, which delivers the domain's mail, obeys what receivers publish.

    There is nothing to publish for it: the DNS servers that are asked decide.
    """
    if proof.validates:
        said = "receivers' TLSA records are obeyed: the DNS servers validate what they answer"
        return Entry("DANE", domain, "TLSA", None, None, True, said)
    ok = None if proof.validates is None else False
    said = in_one_line(_UNBELIEVED[proof.why].format(proof.server or "the DNS"), 4096)
    return Entry("DANE", domain, "TLSA", None, None, ok, said, optional=True)


# ------------------------------------------------------------------------------ PTR


def reverse(address: str, host: str | None) -> Asking[Entry]:
    """Whether the name of an address that mail leaves from leads back to it.

    `host`: what servers are greeted with, if it is a name of the public DNS.
    """
    question = Question(ip_address(address).reverse_pointer, "PTR")
    wanted = f"{host}." if host else None
    answer = yield question
    if answer.status is Status.FAILED:
        return _unknown("PTR", question, answer)
    if not answer.records:
        said = f"{address} has no name, and many refuse mail from such an address"
        return _entry("PTR", question, (), wanted, False, said)
    shown = [f"{name}." for name in answer.records[:_MAX_HOSTS]]
    doubt = False
    for name in answer.records[:_MAX_HOSTS]:
        addresses = yield from _addresses(name)
        doubt = doubt or addresses is None
        if any(ip_address(one) == ip_address(address) for one in addresses or ()):
            return _entry("PTR", question, shown, None, True, f"{name} leads back to {address}")
    if doubt:
        said = "the DNS gave no answer about the addresses of that name"
        return _entry("PTR", question, shown, None, None, said)
    return _entry("PTR", question, shown, wanted, False, f"no such name leads back to {address}")


def no_reverse(address: str | None) -> Entry:
    """What is said of the address that mail leaves from, where nobody here knows the public one.

    `address`: of this machine, that is not public; None: not even that is known.
    """
    if address is None:
        said = "not checked: this machine has no address that leads to the internet"
        return Entry("PTR", "in-addr.arpa", "PTR", None, None, None, said)
    said = f"not checked: {address} is not public, and behind which address it is nobody knows here"
    return Entry("PTR", ip_address(address).reverse_pointer, "PTR", None, None, None, said)
