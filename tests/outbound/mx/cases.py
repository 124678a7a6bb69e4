"""The table of domains: what each publishes, who serves it, and what must become of its mail.

Every case is a way in which a domain can be set up, or attacked; `plan` makes so many domains of
them, a name of its own and servers of its own names for each.  The servers themselves are the few
of `RECEIVERS`, each at an address of loopback.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from relay.checks.sts import Mode, StsPolicy
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
GREY, TARPIT, THROTTLE, UNKNOWN, CLOSED, OTHER, STRANGER, UTF8 = map(str, range(47, 55))
NOBODY = "60"
"""An address at which there is no server."""
SIX = "6"
"""The server at ::1; all others are at 127.0.0.N."""
OWN = "relay.localhost"
"""The name of the relay itself."""


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
            **dict.fromkeys(
                (REFUSES, NONSENSE, GREY, TARPIT, THROTTLE, UNKNOWN, CLOSED, UTF8, SIX), good
            ),
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
    local_part: str = "a"
    """Of the mail's address."""


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
        if at == SIX:
            self.add(name, "AAAA", "::1")
        elif at is not None:
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

    def sts_kept(self, *hosts: str, holds: bool) -> None:
        """Have had a policy of MTA-STS, `enforce`, whose record is gone."""
        self.plan.kept[self.name] = StsPolicy(Mode.ENFORCE, hosts, 86_400), holds

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
    kept: dict[str, tuple[StsPolicy, bool]] = field(default_factory=dict)
    """Policies that were fetched once, by domain; and whether they hold still."""
    ends: dict[str, tuple[str, Ends]] = field(default_factory=dict)
    """By domain: the case, and its end."""

    def addresses(self, begin: str = "") -> list[str]:
        """Of each domain the one that is written to, behind something that it begins with."""
        return [f"{begin}{ends.local_part}@{name}" for name, (_, ends) in self.ends.items()]


Build = Callable[[Domain], Ends]


class Case(NamedTuple):
    """One way in which a domain can be."""

    build: Build
    by: str
    """The clause that its mail is judged by."""
    signed: bool


CASES: dict[str, Case] = {}
"""By name."""

NO_CERT = "4.7.5 the peer's certificate is not accepted: "


def case(by: str, *, signed: bool = True) -> Callable[[Build], Build]:
    """Put a case on the table, judged by a clause; whether the domain is signed."""

    def put(made: Build) -> Build:
        CASES[made.__name__.replace("_", "-")] = Case(made, by, signed)
        return made

    return put


def plan(count: int, port: int, found: Receivers, names: Sequence[str]) -> Plan:
    """So many domains, of each of these cases in turn."""
    made = Plan(found, port)
    for number in range(count):
        name = names[number % len(names)]
        build, _, signed = CASES[name]
        domain = Domain(made, f"{name}-{number // len(names)}", signed)
        ends = build(domain)
        made.ends[domain.name] = name, ends
    return made


# What the DNS says --------------------------------------------------------------------------------


@case("RFC 7505, 3")
def null_mx(d: Domain) -> Ends:
    d.add(d.name, "MX", "0 .")
    return Ends("bounced", "5.1.10 ")


@case("RFC 5321, 5.1", signed=False)
def implicit_mx(d: Domain) -> Ends:
    d.add(d.name, "A", f"127.0.0.{ANY}")
    return Ends("sent", at=ANY, secured=True)


@case("RFC 5321, 5.1")
def nowhere(d: Domain) -> Ends:
    return Ends("bounced", "5.1.2 ")


@case("RFC 5321, 5.1")
def neither_mx_nor_address(d: Domain) -> Ends:
    d.add(d.name, "TXT", '"nothing"')
    return Ends("bounced", "5.1.2 ")


@case("RFC 5321, 5.1")
def mx_without_address(d: Domain) -> Ends:
    d.mx(d.host(None))
    return Ends("bounced", "5.4.4 ")


@case("RFC 4035, 5.5")
def bogus_mx(d: Domain) -> Ends:
    d.served(WEB)
    d.plan.bogus.append((d.name, "MX"))
    return Ends("queued", "4.4.3 ")


@case("RFC 4035, 5.5")
def bogus_address(d: Domain) -> Ends:
    (host,) = d.served(WEB)
    d.plan.bogus.append((host, "A"))
    return Ends("queued", "4.4.3 ")


@case("RFC 5321, 5.1", signed=False)
def alias(d: Domain) -> Ends:
    """The domain is a CNAME: what it leads to is as if it had been said."""
    target = f"{d.label}-target.{UNSIGNED}"
    d.add(d.name, "CNAME", target + ".")
    d.add(target, "MX", f"10 {d.host(ANY, signed=False)}.")
    return Ends("sent", at=ANY, secured=True)


@case("RFC 1034, 3.6.2", signed=False)
def alias_loop(d: Domain) -> Ends:
    """Two names that lead to each other: that says nothing, and may be repaired."""
    other = f"{d.label}-other.{UNSIGNED}"
    d.add(d.name, "CNAME", other + ".")
    d.add(other, "CNAME", d.name + ".")
    return Ends("queued", "4.4.3 ")


@case("RFC 2181, 10.3", signed=False)
def server_alias(d: Domain) -> Ends:
    """A server must not be a CNAME, but is followed where it is."""
    target, alias = d.host(ANY, 2, signed=False), d.host(None, signed=False)
    d.mx(alias)
    d.add(alias, "CNAME", target + ".")
    return Ends("sent", at=ANY, secured=True)


@case("RFC 5321, 5.1", signed=False)
def server_alias_to_nowhere(d: Domain) -> Ends:
    alias = d.host(None, signed=False)
    d.mx(alias)
    d.add(alias, "CNAME", f"{d.label}-nowhere.{UNSIGNED}.")
    return Ends("bounced", "5.4.4 ")


@case("RFC 1035, 3.3.9", signed=False)
def address_as_server(d: Domain) -> Ends:
    """An address is no host name, and nothing is connected to."""
    d.mx(f"127.0.0.{ANY}")
    return Ends("bounced", "5.4.4 ")


@case("RFC 1035, 3.3.9", signed=False)
def address_as_server_then_good(d: Domain) -> Ends:
    d.mx(f"127.0.0.{CLEAR}", d.host(ANY, signed=False))
    return Ends("sent", at=ANY, secured=True)


@case("RFC 5321, 5.1", signed=False)
def this_relay(d: Domain) -> Ends:
    """It is the best server itself, and does not know the domain: the mail would come back."""
    d.mx(OWN, d.host(ANY, signed=False))
    return Ends("bounced", "5.4.6 ")


@case("RFC 5321, 5.1", signed=False)
def this_relay_second(d: Domain) -> Ends:
    """Its own preference is the least that it delivers to."""
    d.mx(d.host(ANY, signed=False), OWN, d.host(CLEAR, 2, signed=False))
    return Ends("sent", at=ANY, secured=True)


@case("RFC 5321, 5.1", signed=False)
def this_relay_second_first_dead(d: Domain) -> Ends:
    """A server of more preference than its own is none for it, whatever becomes of the others."""
    d.mx(d.host(NOBODY, signed=False), OWN, d.host(ANY, 2, signed=False))
    return Ends("queued", "connecting failed")


@case("RFC 5321, 5.1", signed=False)
def equal_preferences(d: Domain) -> Ends:
    """In any order; who takes nothing is followed by the other."""
    for place, at in enumerate((CLOSED, NOBODY, ANY), 1):
        d.add(d.name, "MX", f"10 {d.host(at, place, signed=False)}.")
    return Ends("sent", at=ANY, secured=True)


@case("RFC 5321, 5.2", signed=False)
def ipv6_only(d: Domain) -> Ends:
    d.served(SIX, signed=False)
    return Ends("sent", at=SIX, secured=True)


@case("RFC 8305, 5", signed=False)
def ipv6_dead(d: Domain) -> Ends:
    """One family that leads nowhere (RFC 6666: addresses that discard) costs no attempt."""
    (host,) = d.served(ANY, signed=False)
    d.add(host, "AAAA", "100::1")
    return Ends("sent", at=ANY, secured=True)


@case("RFC 8305, 5", signed=False)
def ipv4_dead(d: Domain) -> Ends:
    (host,) = d.served(SIX, signed=False)
    d.add(host, "A", f"127.0.0.{NOBODY}")
    return Ends("sent", at=SIX, secured=True)


@case("RFC 5890, 2.3.2.1", signed=False)
def international(d: Domain) -> Ends:
    """A domain in A-labels, and an address whose local part is outside ASCII (RFC 6531, 3.2)."""
    d.label = f"bücher-{d.label}".encode("idna").decode("ascii")
    d.served(UTF8, signed=False)
    return Ends("sent", at=UTF8, secured=True, local_part="bjørn")


@case("RFC 6531, 3.2", signed=False)
def international_at_the_second(d: Domain) -> Ends:
    """The first has no SMTPUTF8: it is not asked, and the mail is not spoilt for it."""
    d.label = f"bücher-{d.label}".encode("idna").decode("ascii")
    d.served(ANY, UTF8, signed=False)
    return Ends("sent", at=UTF8, secured=True, local_part="bjørn")


@case("RFC 6531, 3.2", signed=False)
def international_nowhere(d: Domain) -> Ends:
    d.served(ANY, CLEAR, signed=False)
    return Ends("failed", "5.6.7 ", local_part="bjørn")


@case("RFC 6531, 3.2", signed=False)
def international_perhaps(d: Domain) -> Ends:
    """Who cannot be connected to may have it."""
    d.served(ANY, NOBODY, signed=False)
    return Ends("queued", "4.6.7 ", local_part="bjørn")


# Opportunistic ------------------------------------------------------------------------------------


@case("RFC 7435, 3", signed=False)
def any_certificate(d: Domain) -> Ends:
    d.served(ANY, signed=False)
    return Ends("sent", at=ANY, secured=True)


@case("RFC 7435, 3", signed=False)
def old_certificate(d: Domain) -> Ends:
    d.served(OLD, signed=False)
    return Ends("sent", at=OLD, secured=True)


@case("RFC 3207, 4", signed=False)
def no_starttls(d: Domain) -> Ends:
    d.served(CLEAR, signed=False)
    return Ends("sent", at=CLEAR, secured=False)


@case("RFC 7435, 3", signed=False)
def starttls_refused(d: Domain) -> Ends:
    d.served(REFUSES, signed=False)
    return Ends("sent", at=REFUSES, secured=False)


@case("RFC 3207, 6", signed=False)
def starttls_breaks(d: Domain) -> Ends:
    d.served(NONSENSE, signed=False)
    return Ends("sent", at=NONSENSE, secured=False)


# DANE ---------------------------------------------------------------------------------------------


def _ee(selector: int, matching: int) -> Build:
    def built(d: Domain) -> Ends:
        (host,) = d.served(ANY)
        d.tlsa(host, d.ee(ANY, selector, matching))
        return Ends("sent", at=ANY, secured=True)

    return built


def _ta(selector: int, matching: int) -> Build:
    def built(d: Domain) -> Ends:
        (host,) = d.served(WEB)
        d.tlsa(host, d.ta(selector, matching))
        return Ends("sent", at=WEB, secured=True)

    return built


for _selector in (0, 1):
    for _matching in (0, 1, 2):
        CASES[f"dane-3{_selector}{_matching}"] = Case(
            _ee(_selector, _matching), "RFC 7672, 3.1.1", True
        )
        CASES[f"dane-2{_selector}{_matching}"] = Case(
            _ta(_selector, _matching), "RFC 7672, 3.1.2", True
        )


@case("RFC 7672, 3.1.1")
def dane_ee_old(d: Domain) -> Ends:
    (host,) = d.served(OLD)
    d.tlsa(host, d.ee(OLD))
    return Ends("sent", at=OLD, secured=True)


@case("RFC 7672, 2.2")
def dane_ee_mismatch(d: Domain) -> Ends:
    (host,) = d.served(ANY)
    d.tlsa(host, d.ee(WEB))
    return Ends("queued", NO_CERT + "it matches no TLSA record")


@case("RFC 6698, 2.1")
def dane_ee_one_of_two(d: Domain) -> Ends:
    (host,) = d.served(ANY)
    d.tlsa(host, d.ee(WEB), d.ee(ANY))
    return Ends("sent", at=ANY, secured=True)


@case("RFC 7672, 3.1.2")
def dane_ta_old(d: Domain) -> Ends:
    (host,) = d.served(OLD)
    d.tlsa(host, d.ta())
    return Ends("queued", NO_CERT + "it has expired")


@case("RFC 7672, 3.2.3")
def dane_ta_another_name(d: Domain) -> Ends:
    (host,) = d.served(OTHER)
    d.tlsa(host, d.ta())
    return Ends("queued", NO_CERT + "it is not for ")


@case("RFC 7672, 3.1.2")
def dane_ta_another_authority(d: Domain) -> Ends:
    (host,) = d.served(STRANGER)
    d.tlsa(host, d.ta())
    return Ends("queued", NO_CERT + "no authority of a TLSA record has signed it")


@case("RFC 7672, 2.2")
def dane_unusable(d: Domain) -> Ends:
    (host,) = d.served(ANY)
    d.tlsa(host, "1 1 1 " + "ab" * 32, "0 0 1 " + "cd" * 32)
    return Ends("sent", at=ANY, secured=True)


@case("RFC 7672, 2.2")
def dane_unusable_downgraded(d: Domain) -> Ends:
    (host,) = d.served(CLEAR)
    d.tlsa(host, "1 1 1 " + "ab" * 32)
    return Ends("queued", "4.7.5 the peer offers no STARTTLS")


@case("RFC 7672, 2.2")
def dane_downgraded(d: Domain) -> Ends:
    (host,) = d.served(CLEAR)
    d.tlsa(host, d.ee(WEB))
    return Ends("queued", "4.7.5 the peer offers no STARTTLS")


@case("RFC 7672, 2.2")
def dane_starttls_refused(d: Domain) -> Ends:
    (host,) = d.served(REFUSES)
    d.tlsa(host, d.ee(REFUSES))
    return Ends("queued", "454 4.7.0 ")


@case("RFC 3207, 6")
def dane_starttls_breaks(d: Domain) -> Ends:
    (host,) = d.served(NONSENSE)
    d.tlsa(host, d.ee(NONSENSE))
    return Ends("queued", "4.7.5 ")


@case("RFC 7672, 2.2.1", signed=False)
def dane_mx_not_signed(d: Domain) -> Ends:
    """Who can change the MX can lead the mail anywhere: the server's records count for nothing."""
    (host,) = d.served(ANY)
    d.tlsa(host, d.ee(WEB))
    return Ends("sent", at=ANY, secured=True)


@case("RFC 7672, 2.2.2")
def dane_server_not_signed(d: Domain) -> Ends:
    (host,) = d.served(ANY, signed=False)
    d.tlsa(host, d.ee(WEB))
    return Ends("sent", at=ANY, secured=True)


@case("RFC 7672, 2.2.3")
def dane_of_the_domain(d: Domain) -> Ends:
    """KumoMTA's issue 517: records at the domain's name say nothing of its servers."""
    d.served(ANY)
    d.tlsa(d.name, d.ee(WEB))
    return Ends("sent", at=ANY, secured=True)


@case("RFC 7672, 2.1.1")
def dane_bogus(d: Domain) -> Ends:
    (host,) = d.served(ANY)
    d.tlsa(host, d.ee(ANY))
    d.break_tlsa(host)
    return Ends("queued", "4.7.5 the TLSA records of ")


@case("RFC 7672, 2.1.2")
def dane_servfail(d: Domain) -> Ends:
    (host,) = d.served(ANY)
    d.add(f"_tcp.{host}", "NS", "lame.root.")
    return Ends("queued", "4.7.5 the TLSA records of ")


@case("RFC 7672, 2.2")
def dane_bogus_then_good(d: Domain) -> Ends:
    bogus, good = d.served(STRANGER, ANY)
    d.tlsa(bogus, d.ee(STRANGER))
    d.break_tlsa(bogus)
    d.tlsa(good, d.ee(ANY))
    return Ends("sent", at=ANY, secured=True)


@case("RFC 7672, 2.2")
def dane_mismatch_then_good(d: Domain) -> Ends:
    bad, good = d.served(STRANGER, ANY)
    d.tlsa(bad, d.ee(WEB))
    d.tlsa(good, d.ee(ANY))
    return Ends("sent", at=ANY, secured=True)


@case("RFC 7672, 2.2.2")
def dane_alias(d: Domain) -> Ends:
    """The records of the name that a server's name leads to."""
    target = d.host(ANY, 2)
    alias = d.host(None)
    d.mx(alias)
    d.add(alias, "CNAME", target + ".")
    d.tlsa(target, d.ee(ANY))
    return Ends("sent", at=ANY, secured=True)


@case("RFC 7672, 2.2.2")
def dane_alias_mismatch(d: Domain) -> Ends:
    target = d.host(ANY, 2)
    alias = d.host(None)
    d.mx(alias)
    d.add(alias, "CNAME", target + ".")
    d.tlsa(target, d.ee(WEB))
    return Ends("queued", NO_CERT + "it matches no TLSA record")


@case("RFC 7672, 2.2.1")
def dane_implicit(d: Domain) -> Ends:
    d.add(d.name, "A", f"127.0.0.{ANY}")
    d.tlsa(d.name, d.ee(ANY))
    return Ends("sent", at=ANY, secured=True)


@case("RFC 7672, 2.2.1")
def dane_implicit_mismatch(d: Domain) -> Ends:
    d.add(d.name, "A", f"127.0.0.{ANY}")
    d.tlsa(d.name, d.ee(WEB))
    return Ends("queued", NO_CERT + "it matches no TLSA record")


# MTA-STS ------------------------------------------------------------------------------------------


@case("RFC 8461, 4.2", signed=False)
def sts_enforce(d: Domain) -> Ends:
    d.sts("enforce", *d.served(WEB, signed=False))
    return Ends("sent", at=WEB, secured=True)


@case("RFC 8461, 5", signed=False)
def sts_enforce_another_server(d: Domain) -> Ends:
    d.served(WEB, signed=False)
    d.sts("enforce", "mx.elsewhere.example")
    return Ends("queued", "4.7.5 MTA-STS allows none of ")


@case("RFC 8461, 5", signed=False)
def sts_enforce_the_second(d: Domain) -> Ends:
    _, second = d.served(STRANGER, WEB, signed=False)
    d.sts("enforce", second)
    return Ends("sent", at=WEB, secured=True)


@case("RFC 8461, 4.2", signed=False)
def sts_enforce_unknown(d: Domain) -> Ends:
    d.sts("enforce", *d.served(STRANGER, signed=False))
    return Ends("queued", NO_CERT)


@case("RFC 8461, 4.2", signed=False)
def sts_enforce_old(d: Domain) -> Ends:
    d.sts("enforce", *d.served(OLD, signed=False))
    return Ends("queued", NO_CERT + "certificate has expired")


@case("RFC 8461, 4.2", signed=False)
def sts_enforce_another_name(d: Domain) -> Ends:
    d.sts("enforce", *d.served(OTHER, signed=False))
    return Ends("queued", NO_CERT + "Hostname mismatch")


@case("RFC 8461, 5", signed=False)
def sts_enforce_downgraded(d: Domain) -> Ends:
    d.sts("enforce", *d.served(CLEAR, signed=False))
    return Ends("queued", "4.7.5 the peer offers no STARTTLS")


@case("RFC 8461, 5", signed=False)
def sts_testing(d: Domain) -> Ends:
    d.sts("testing", *d.served(STRANGER, signed=False))
    return Ends("sent", at=STRANGER, secured=True)


@case("RFC 8461, 5", signed=False)
def sts_testing_downgraded(d: Domain) -> Ends:
    d.sts("testing", *d.served(CLEAR, signed=False))
    return Ends("sent", at=CLEAR, secured=False)


@case("RFC 8461, 5", signed=False)
def sts_none(d: Domain) -> Ends:
    d.served(CLEAR, signed=False)
    d.sts("none")
    return Ends("sent", at=CLEAR, secured=False)


@case("RFC 8461, 3.3", signed=False)
def sts_from_a_server_that_nobody_knows(d: Domain) -> Ends:
    d.served(STRANGER, signed=False)
    d.sts("enforce", "mx.elsewhere.example", at=BROKEN_POLICIES)
    return Ends("sent", at=STRANGER, secured=True)


@case("RFC 8461, 5.1", signed=False)
def sts_kept(d: Domain) -> Ends:
    """What was fetched holds though its record is gone: who can hide that gains nothing."""
    d.served(WEB, signed=False)
    d.sts_kept("mx.elsewhere.example", holds=True)
    return Ends("queued", "4.7.5 MTA-STS allows none of ")


@case("RFC 8461, 3.2", signed=False)
def sts_expired(d: Domain) -> Ends:
    """At the end of its max_age a policy is none."""
    d.served(STRANGER, signed=False)
    d.sts_kept("mx.elsewhere.example", holds=False)
    return Ends("sent", at=STRANGER, secured=True)


@case("RFC 8461, 3.2", signed=False)
def sts_expired_and_new(d: Domain) -> Ends:
    """Where it is published still, it is fetched anew."""
    (host,) = d.served(WEB, signed=False)
    d.sts_kept("mx.elsewhere.example", holds=False)
    d.sts("enforce", host)
    return Ends("sent", at=WEB, secured=True)


@case("RFC 8461, 5", signed=False)
def sts_testing_another_server(d: Domain) -> Ends:
    d.served(STRANGER, signed=False)
    d.sts("testing", "mx.elsewhere.example")
    return Ends("sent", at=STRANGER, secured=True)


@case("RFC 8461, 2")
def sts_against_dane(d: Domain) -> Ends:
    """RFC 8461, 2: a valid certificate does not make good for TLSA that does not match."""
    (host,) = d.served(WEB)
    d.sts("enforce", host)
    d.tlsa(host, d.ee(ANY))
    return Ends("queued", NO_CERT + "it matches no TLSA record")


@case("RFC 8461, 2")
def dane_against_sts(d: Domain) -> Ends:
    (host,) = d.served(STRANGER)
    d.sts("enforce", "mx.elsewhere.example")
    d.tlsa(host, d.ee(STRANGER))
    return Ends("sent", at=STRANGER, secured=True)


UNUSABLE = "1 1 1 " + "ab" * 32
"""A record that RFC 7672, 3.1.3, has no use for."""


@case("RFC 8461, 2")
def sts_and_dane_unusable(d: Domain) -> Ends:
    (host,) = d.served(WEB)
    d.sts("enforce", host)
    d.tlsa(host, UNUSABLE)
    return Ends("sent", at=WEB, secured=True)


@case("RFC 8461, 2")
def sts_and_dane_unusable_unknown(d: Domain) -> Ends:
    """Records that verify nothing do not take the place of what would."""
    (host,) = d.served(STRANGER)
    d.sts("enforce", host)
    d.tlsa(host, UNUSABLE)
    return Ends("queued", NO_CERT)


@case("RFC 8461, 2")
def sts_and_dane_unusable_another_server(d: Domain) -> Ends:
    (host,) = d.served(STRANGER)
    d.sts("enforce", "mx.elsewhere.example")
    d.tlsa(host, UNUSABLE)
    return Ends("queued", "4.7.5 MTA-STS allows none of ")


@case("RFC 7672, 2.2")
def sts_testing_and_dane_unusable_downgraded(d: Domain) -> Ends:
    """That one asks for nothing takes nothing of what the other asks for."""
    (host,) = d.served(CLEAR)
    d.sts("testing", host)
    d.tlsa(host, UNUSABLE)
    return Ends("queued", "4.7.5 the peer offers no STARTTLS")


# How servers behave -------------------------------------------------------------------------------


@case("RFC 5321, 4.2.1", signed=False)
def greylisted(d: Domain) -> Ends:
    d.served(GREY, signed=False)
    return Ends("queued", "451 4.7.1 ")


@case("RFC 5321, 4.5.3.2", signed=False)
def tarpitted(d: Domain) -> Ends:
    d.served(TARPIT, signed=False)
    return Ends("sent", at=TARPIT, secured=True)


@case("RFC 5321, 3.8", signed=False)
def throttled(d: Domain) -> Ends:
    d.served(THROTTLE, signed=False)
    return Ends("queued", "421 4.7.0 ")


@case("RFC 5321, 4.2.1", signed=False)
def unknown_user(d: Domain) -> Ends:
    d.served(UNKNOWN, signed=False)
    return Ends("bounced", "550 5.1.1 ")


@case("RFC 5321, 3.1", signed=False)
def closed(d: Domain) -> Ends:
    d.served(CLOSED, signed=False)
    return Ends("queued", "554 5.7.1 ")


@case("RFC 5321, 5.1", signed=False)
def closed_then_open(d: Domain) -> Ends:
    d.served(CLOSED, ANY, signed=False)
    return Ends("sent", at=ANY, secured=True)
