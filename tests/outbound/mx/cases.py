"""The table of domains: what each publishes, who serves it, and what must become of its mail.

Every case is a way in which a domain can be set up, or attacked; `plan` makes so many domains of
them, a name of its own and servers of its own names for each.  The servers themselves are the few
of `RECEIVERS`, each at an address of loopback.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from tests.outbound.mx.pki import Issued, issue
from tests.outbound.mx.policies import policy

UNSIGNED = "plain.example"
GOOD_POLICIES, BROKEN_POLICIES = "127.0.0.1", "127.0.0.40"
"""Who serves policies of MTA-STS: with a valid certificate, and with one that nobody knows."""


class Receivers(NamedTuple):
    """Who there is, by the last number of the address; what each shows."""

    root: Issued
    """Whom everybody trusts."""
    chains: Mapping[str, tuple[Issued, ...]]


ANY, WEB, CLEAR, OLD, REFUSES, NONSENSE = map(str, range(41, 47))
GREY, TARPIT, THROTTLE, UNKNOWN, CLOSED, OTHER, STRANGER = map(str, range(47, 54))


def receivers() -> Receivers:
    """The servers' certificates."""
    root = issue("root", ca=True)
    stranger = issue("a stranger", ca=True)
    hosts = ["*.mx.example", "*.plain.example"]
    own = (issue("any"),)
    good = (issue("web", root, names=hosts), root)
    return Receivers(
        root,
        {
            ANY: own,
            WEB: good,
            OLD: (issue("old", root, names=hosts, days=-1), root),
            OTHER: (issue("other", root, names=["www.elsewhere.example"]), root),
            STRANGER: (issue("stranger", stranger, names=hosts), stranger),
            **dict.fromkeys((REFUSES, NONSENSE, GREY, TARPIT, THROTTLE, UNKNOWN, CLOSED), good),
        },
    )


class Ends(NamedTuple):
    """What must become of a domain's mail."""

    status: str
    """After one attempt."""
    text: str = ""
    """What its error begins with."""
    at: str = ""
    """Which receiver has it."""
    secured: bool | None = None
    """Whether it came by TLS; None: it never came."""


@dataclass
class Domain:
    """One domain of a plan."""

    plan: Plan
    label: str
    signed: bool = True

    @property
    def name(self) -> str:
        """Its name."""
        return f"{self.label}.{'signed.example' if self.signed else UNSIGNED}"

    def host(self, at: str | None, place: int = 1, *, signed: bool = True) -> str:
        """A server of its own name, at a receiver; returns the name."""
        zone = "mx.example" if signed else UNSIGNED
        name = f"{self.label}-{place}.{zone}"
        if at is not None:
            self.add(name, "A", f"127.0.0.{at}")
        return name

    def add(self, name: str, kind: str, *records: str) -> None:
        """Publish records."""
        zone = self.plan.unsigned if name.endswith("." + UNSIGNED) else self.plan.records
        zone.setdefault((name, kind), []).extend(records)

    def mx(self, *hosts: str) -> None:
        """Name its servers, best first."""
        self.add(self.name, "MX", *(f"{10 * n} {host}." for n, host in enumerate(hosts, 1)))

    def served(self, *at: str, signed: bool = True) -> list[str]:
        """Have receivers as its servers, best first; returns their names."""
        hosts = [self.host(one, place, signed=signed) for place, one in enumerate(at, 1)]
        self.mx(*hosts)
        return hosts

    def tlsa(self, host: str, *records: str) -> None:
        """Publish what certificate a server has."""
        self.add(self.tlsa_name(host), "TLSA", *records)

    def tlsa_name(self, host: str) -> str:
        """Where that stands."""
        return f"_{self.plan.port}._tcp.{host}"

    def break_tlsa(self, host: str) -> None:
        """Have its signature be broken."""
        self.plan.bogus.append((self.tlsa_name(host), "TLSA"))

    def sts(self, mode: str, *hosts: str, at: str = GOOD_POLICIES) -> None:
        """Have a policy of MTA-STS."""
        self.add(f"_mta-sts.{self.name}", "TXT", '"v=STSv1; id=1"')
        self.add(f"mta-sts.{self.name}", "A", at)
        self.plan.policies[self.name] = policy(mode, *hosts)

    def ee(self, at: str, selector: int = 1, matching: int = 1) -> str:
        """The record of a receiver's own certificate."""
        return self.plan.receivers.chains[at][0].record(3, selector, matching)

    def ta(self, selector: int = 1, matching: int = 1) -> str:
        """The record of the authority."""
        return self.plan.receivers.root.record(2, selector, matching)


@dataclass
class Plan:
    """What all domains publish, and what must become of their mail."""

    receivers: Receivers
    port: int
    """Of the receivers."""
    records: dict[tuple[str, str], list[str]] = field(default_factory=dict)
    unsigned: dict[tuple[str, str], list[str]] = field(default_factory=dict)
    bogus: list[tuple[str, str]] = field(default_factory=list)
    policies: dict[str, bytes] = field(default_factory=dict)
    ends: dict[str, tuple[str, Ends]] = field(default_factory=dict)
    """By domain: the case, and its end."""


Case = Callable[[Domain], Ends]
CASES: dict[str, tuple[Case, bool]] = {}
"""By name; and whether the domain is signed."""

NO_CERT = "4.7.5 the peer's certificate is not accepted: "


def case(*, signed: bool = True) -> Callable[[Case], Case]:
    """Put a case on the table."""

    def put(made: Case) -> Case:
        CASES[made.__name__.replace("_", "-")] = made, signed
        return made

    return put


def plan(count: int, port: int, found: Receivers) -> Plan:
    """So many domains, of every case in turn."""
    made = Plan(found, port)
    for number in range(count):
        name = list(CASES)[number % len(CASES)]
        build, signed = CASES[name]
        domain = Domain(made, f"{name}-{number // len(CASES)}", signed)
        made.ends[domain.name] = name, build(domain)
    return made


# What the DNS says --------------------------------------------------------------------------------


@case()
def null_mx(d: Domain) -> Ends:
    d.add(d.name, "MX", "0 .")
    return Ends("bounced", "5.1.10 ")


@case(signed=False)
def implicit_mx(d: Domain) -> Ends:
    d.add(d.name, "A", f"127.0.0.{ANY}")
    return Ends("sent", at=ANY, secured=True)


@case()
def nowhere(d: Domain) -> Ends:
    return Ends("bounced", "5.1.2 ")


@case()
def neither_mx_nor_address(d: Domain) -> Ends:
    d.add(d.name, "TXT", '"nothing"')
    return Ends("bounced", "5.1.2 ")


@case()
def mx_without_address(d: Domain) -> Ends:
    d.mx(d.host(None))
    return Ends("bounced", "5.4.4 ")


@case()
def bogus_mx(d: Domain) -> Ends:
    d.served(WEB)
    d.plan.bogus.append((d.name, "MX"))
    return Ends("queued", "4.4.3 ")


@case()
def bogus_address(d: Domain) -> Ends:
    (host,) = d.served(WEB)
    d.plan.bogus.append((host, "A"))
    return Ends("queued", "4.4.3 ")


# Opportunistic ------------------------------------------------------------------------------------


@case(signed=False)
def any_certificate(d: Domain) -> Ends:
    d.served(ANY, signed=False)
    return Ends("sent", at=ANY, secured=True)


@case(signed=False)
def old_certificate(d: Domain) -> Ends:
    d.served(OLD, signed=False)
    return Ends("sent", at=OLD, secured=True)


@case(signed=False)
def no_starttls(d: Domain) -> Ends:
    d.served(CLEAR, signed=False)
    return Ends("sent", at=CLEAR, secured=False)


@case(signed=False)
def starttls_refused(d: Domain) -> Ends:
    d.served(REFUSES, signed=False)
    return Ends("sent", at=REFUSES, secured=False)


@case(signed=False)
def starttls_breaks(d: Domain) -> Ends:
    d.served(NONSENSE, signed=False)
    return Ends("sent", at=NONSENSE, secured=False)


# DANE ---------------------------------------------------------------------------------------------


def _ee(selector: int, matching: int) -> Case:
    def built(d: Domain) -> Ends:
        (host,) = d.served(ANY)
        d.tlsa(host, d.ee(ANY, selector, matching))
        return Ends("sent", at=ANY, secured=True)

    return built


def _ta(selector: int, matching: int) -> Case:
    def built(d: Domain) -> Ends:
        (host,) = d.served(WEB)
        d.tlsa(host, d.ta(selector, matching))
        return Ends("sent", at=WEB, secured=True)

    return built


for _selector in (0, 1):
    for _matching in (0, 1, 2):
        CASES[f"dane-3{_selector}{_matching}"] = _ee(_selector, _matching), True
        CASES[f"dane-2{_selector}{_matching}"] = _ta(_selector, _matching), True


@case()
def dane_ee_old(d: Domain) -> Ends:
    (host,) = d.served(OLD)
    d.tlsa(host, d.ee(OLD))
    return Ends("sent", at=OLD, secured=True)


@case()
def dane_ee_mismatch(d: Domain) -> Ends:
    (host,) = d.served(ANY)
    d.tlsa(host, d.ee(WEB))
    return Ends("queued", NO_CERT + "it matches no TLSA record")


@case()
def dane_ee_one_of_two(d: Domain) -> Ends:
    (host,) = d.served(ANY)
    d.tlsa(host, d.ee(WEB), d.ee(ANY))
    return Ends("sent", at=ANY, secured=True)


@case()
def dane_ta_old(d: Domain) -> Ends:
    (host,) = d.served(OLD)
    d.tlsa(host, d.ta())
    return Ends("queued", NO_CERT + "it has expired")


@case()
def dane_ta_another_name(d: Domain) -> Ends:
    (host,) = d.served(OTHER)
    d.tlsa(host, d.ta())
    return Ends("queued", NO_CERT + "it is not for ")


@case()
def dane_ta_another_authority(d: Domain) -> Ends:
    (host,) = d.served(STRANGER)
    d.tlsa(host, d.ta())
    return Ends("queued", NO_CERT + "no authority of a TLSA record has signed it")


@case()
def dane_unusable(d: Domain) -> Ends:
    (host,) = d.served(ANY)
    d.tlsa(host, "1 1 1 " + "ab" * 32, "0 0 1 " + "cd" * 32)
    return Ends("sent", at=ANY, secured=True)


@case()
def dane_unusable_downgraded(d: Domain) -> Ends:
    (host,) = d.served(CLEAR)
    d.tlsa(host, "1 1 1 " + "ab" * 32)
    return Ends("queued", "4.7.5 the peer offers no STARTTLS")


@case()
def dane_downgraded(d: Domain) -> Ends:
    (host,) = d.served(CLEAR)
    d.tlsa(host, d.ee(WEB))
    return Ends("queued", "4.7.5 the peer offers no STARTTLS")


@case()
def dane_starttls_refused(d: Domain) -> Ends:
    (host,) = d.served(REFUSES)
    d.tlsa(host, d.ee(REFUSES))
    return Ends("queued", "454 4.7.0 ")


@case()
def dane_starttls_breaks(d: Domain) -> Ends:
    (host,) = d.served(NONSENSE)
    d.tlsa(host, d.ee(NONSENSE))
    return Ends("queued", "4.7.5 ")


@case(signed=False)
def dane_mx_not_signed(d: Domain) -> Ends:
    """Who can change the MX can lead the mail anywhere: the server's records count for nothing."""
    (host,) = d.served(ANY)
    d.tlsa(host, d.ee(WEB))
    return Ends("sent", at=ANY, secured=True)


@case()
def dane_server_not_signed(d: Domain) -> Ends:
    (host,) = d.served(ANY, signed=False)
    d.tlsa(host, d.ee(WEB))
    return Ends("sent", at=ANY, secured=True)


@case()
def dane_of_the_domain(d: Domain) -> Ends:
    """KumoMTA's issue 517: records at the domain's name say nothing of its servers."""
    d.served(ANY)
    d.tlsa(d.name, d.ee(WEB))
    return Ends("sent", at=ANY, secured=True)


@case()
def dane_bogus(d: Domain) -> Ends:
    (host,) = d.served(ANY)
    d.tlsa(host, d.ee(ANY))
    d.break_tlsa(host)
    return Ends("queued", "4.7.5 the TLSA records of ")


@case()
def dane_servfail(d: Domain) -> Ends:
    (host,) = d.served(ANY)
    d.add(f"_tcp.{host}", "NS", "lame.root.")
    return Ends("queued", "4.7.5 the TLSA records of ")


@case()
def dane_bogus_then_good(d: Domain) -> Ends:
    bogus, good = d.served(STRANGER, ANY)
    d.tlsa(bogus, d.ee(STRANGER))
    d.break_tlsa(bogus)
    d.tlsa(good, d.ee(ANY))
    return Ends("sent", at=ANY, secured=True)


@case()
def dane_mismatch_then_good(d: Domain) -> Ends:
    bad, good = d.served(STRANGER, ANY)
    d.tlsa(bad, d.ee(WEB))
    d.tlsa(good, d.ee(ANY))
    return Ends("sent", at=ANY, secured=True)


@case()
def dane_alias(d: Domain) -> Ends:
    """The records of the name that a server's name leads to."""
    target = d.host(ANY, 2)
    alias = d.host(None)
    d.mx(alias)
    d.add(alias, "CNAME", target + ".")
    d.tlsa(target, d.ee(ANY))
    return Ends("sent", at=ANY, secured=True)


@case()
def dane_alias_mismatch(d: Domain) -> Ends:
    target = d.host(ANY, 2)
    alias = d.host(None)
    d.mx(alias)
    d.add(alias, "CNAME", target + ".")
    d.tlsa(target, d.ee(WEB))
    return Ends("queued", NO_CERT + "it matches no TLSA record")


@case()
def dane_implicit(d: Domain) -> Ends:
    d.add(d.name, "A", f"127.0.0.{ANY}")
    d.tlsa(d.name, d.ee(ANY))
    return Ends("sent", at=ANY, secured=True)


@case()
def dane_implicit_mismatch(d: Domain) -> Ends:
    d.add(d.name, "A", f"127.0.0.{ANY}")
    d.tlsa(d.name, d.ee(WEB))
    return Ends("queued", NO_CERT + "it matches no TLSA record")


# MTA-STS ------------------------------------------------------------------------------------------


@case(signed=False)
def sts_enforce(d: Domain) -> Ends:
    d.sts("enforce", *d.served(WEB, signed=False))
    return Ends("sent", at=WEB, secured=True)


@case(signed=False)
def sts_enforce_another_server(d: Domain) -> Ends:
    d.served(WEB, signed=False)
    d.sts("enforce", "mx.elsewhere.example")
    return Ends("queued", "4.7.5 MTA-STS allows none of ")


@case(signed=False)
def sts_enforce_the_second(d: Domain) -> Ends:
    _, second = d.served(STRANGER, WEB, signed=False)
    d.sts("enforce", second)
    return Ends("sent", at=WEB, secured=True)


@case(signed=False)
def sts_enforce_unknown(d: Domain) -> Ends:
    d.sts("enforce", *d.served(STRANGER, signed=False))
    return Ends("queued", NO_CERT)


@case(signed=False)
def sts_enforce_old(d: Domain) -> Ends:
    d.sts("enforce", *d.served(OLD, signed=False))
    return Ends("queued", NO_CERT + "certificate has expired")


@case(signed=False)
def sts_enforce_another_name(d: Domain) -> Ends:
    d.sts("enforce", *d.served(OTHER, signed=False))
    return Ends("queued", NO_CERT + "Hostname mismatch")


@case(signed=False)
def sts_enforce_downgraded(d: Domain) -> Ends:
    d.sts("enforce", *d.served(CLEAR, signed=False))
    return Ends("queued", "4.7.5 the peer offers no STARTTLS")


@case(signed=False)
def sts_testing(d: Domain) -> Ends:
    d.sts("testing", *d.served(STRANGER, signed=False))
    return Ends("sent", at=STRANGER, secured=True)


@case(signed=False)
def sts_testing_downgraded(d: Domain) -> Ends:
    d.sts("testing", *d.served(CLEAR, signed=False))
    return Ends("sent", at=CLEAR, secured=False)


@case(signed=False)
def sts_none(d: Domain) -> Ends:
    d.served(CLEAR, signed=False)
    d.sts("none")
    return Ends("sent", at=CLEAR, secured=False)


@case(signed=False)
def sts_from_a_server_that_nobody_knows(d: Domain) -> Ends:
    d.served(STRANGER, signed=False)
    d.sts("enforce", "mx.elsewhere.example", at=BROKEN_POLICIES)
    return Ends("sent", at=STRANGER, secured=True)


@case()
def sts_against_dane(d: Domain) -> Ends:
    """RFC 8461, 2: a valid certificate does not make good for TLSA that does not match."""
    (host,) = d.served(WEB)
    d.sts("enforce", host)
    d.tlsa(host, d.ee(ANY))
    return Ends("queued", NO_CERT + "it matches no TLSA record")


@case()
def dane_against_sts(d: Domain) -> Ends:
    (host,) = d.served(STRANGER)
    d.sts("enforce", "mx.elsewhere.example")
    d.tlsa(host, d.ee(STRANGER))
    return Ends("sent", at=STRANGER, secured=True)


# How servers behave -------------------------------------------------------------------------------


@case(signed=False)
def greylisted(d: Domain) -> Ends:
    d.served(GREY, signed=False)
    return Ends("queued", "451 4.7.1 ")


@case(signed=False)
def tarpitted(d: Domain) -> Ends:
    d.served(TARPIT, signed=False)
    return Ends("sent", at=TARPIT, secured=True)


@case(signed=False)
def throttled(d: Domain) -> Ends:
    d.served(THROTTLE, signed=False)
    return Ends("queued", "421 4.7.0 ")


@case(signed=False)
def unknown_user(d: Domain) -> Ends:
    d.served(UNKNOWN, signed=False)
    return Ends("bounced", "550 5.1.1 ")


@case(signed=False)
def closed(d: Domain) -> Ends:
    d.served(CLOSED, signed=False)
    return Ends("queued", "554 5.7.1 ")


@case(signed=False)
def closed_then_open(d: Domain) -> Ends:
    d.served(CLOSED, ANY, signed=False)
    return Ends("sent", at=ANY, secured=True)
