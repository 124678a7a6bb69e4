"""What a domain publishes, over HTTP: with a DNS on loopback, and a server of policies."""

from __future__ import annotations

import json
import ssl
from pathlib import Path
from typing import Any

import pytest
import trio

from relay.db.pool import Pool
from relay.dns.resolver import Resolver
from relay.http.probes.domain_checks import DomainChecks
from relay.outbound.routing.senders import Senders
from relay.outbound.routing.sources import parse as parse_sources
from relay.outbound.signing.dkim_keys import DkimKeys
from relay.self_signed import self_signed
from relay.webhooks.post import Got, Poster
from tests.dns.server import DnsServer
from tests.http.conftest import House, open_house

POLICY = b"version: STSv1\nmode: enforce\nmx: mx.shop.example\nmax_age: 86400\n"


def in_strings(text: str) -> str:
    return " ".join(f'"{text[at : at + 200]}"' for at in range(0, len(text), 200))


async def serve_policy(folder: Path, nursery: trio.Nursery) -> tuple[ssl.SSLContext, int]:
    """Serve POLICY at mta-sts.shop.example; who trusts it, and the port."""
    cert, key = self_signed(["mta-sts.shop.example"])
    (folder / "cert.pem").write_bytes(cert)
    (folder / "key.pem").write_bytes(key)
    serving = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    serving.load_cert_chain(folder / "cert.pem", folder / "key.pem")

    async def answer(stream: trio.SSLStream[trio.SocketStream]) -> None:
        async with stream:
            asked = await stream.receive_some(65536)
            there = asked.startswith(b"GET /.well-known/mta-sts.txt ")
            status = b"200 OK" if there else b"404 Not Found"
            head = b"HTTP/1.1 %b\r\nContent-Type: text/plain\r\nContent-Length: %d\r\n\r\n"
            await stream.send_all(head % (status, len(POLICY)) + POLICY)

    (plain,) = await trio.open_tcp_listeners(0, host="127.0.0.1")
    nursery.start_soon(trio.serve_listeners, answer, [trio.SSLListener(plain, serving)])
    trusting = ssl.create_default_context(cadata=cert.decode())
    return trusting, plain.socket.getsockname()[1]


async def postmaster(address: str) -> bool:
    """A relay that has a mailbox postmaster@ each of its domains, and no other."""
    return address.startswith("postmaster@")


class _Here(Poster):
    """Asks at another port than 443, which only root may serve."""

    port = 443

    async def get(self, text: str, headers: Any, most: int) -> Got:
        return await super().get(
            text.replace("shop.example/", f"shop.example:{self.port}/"), headers, most
        )


async def test_a_domain_is_checked(
    database_url: str, pool: Pool, nursery: trio.Nursery, tmp_path: Path
):
    """What is published is found, in several strings and behind CNAMEs; what is not is wanted."""
    zone: dict[tuple[str, str], list[str]] = {
        ("shop.example", "MX"): ["10 mx.shop.example."],
        ("mx.shop.example", "A"): ["192.0.2.1"],
        ("out.example", "A"): ["192.0.2.9"],
        ("shop.example", "TXT"): ['"v=spf1 a:out.example" " -all"', '"something else"'],
        ("_mta-sts.shop.example", "TXT"): ['"v=STSv1; id=1"'],
        ("mta-sts.shop.example", "A"): ["127.0.0.1"],
    }
    names: DnsServer = await nursery.start(DnsServer(zone, ttl=3600, negative=3600).run)
    trusting, port = await serve_policy(tmp_path, nursery)
    _Here.port = port
    async with open_house(database_url, pool, dns=names.address) as house:
        keys, senders = DkimKeys(pool, house.keyring.vault), Senders(pool, house.keyring.vault)
        made = await keys.create("shop.example", "s1")
        resolver = Resolver([names.address])
        checks = DomainChecks(
            lambda: resolver,
            keys,
            senders,
            lambda resolve: _Here(allow_private=True, context=lambda: trusting, resolve=resolve),
            upstream="smtps://out.example:465",
            received=["relay.shop.example", "shop.example"],
            takes=postmaster,
        )
        async with open_house(
            database_url, pool, keyring=house.keyring, domain_checks=checks
        ) as checking:
            path = "/api/v1/domains/SHOP.example/check"

            async def entries() -> dict[str, Any]:
                answer = await checking.client.get(path, headers=checking.admin)
                assert answer.status_code == 200, answer.text
                return {f"{one['record']} {one['name']}": one for one in answer.json()}

            found = await entries()
            assert {name: one["ok"] for name, one in found.items()} == {
                "MX shop.example": True,
                "SPF shop.example": True,
                "DKIM s1._domainkey.shop.example": False,
                "DKIM s1-ed25519._domainkey.shop.example": False,
                "DMARC _dmarc.shop.example": False,
                "MTA-STS _mta-sts.shop.example": True,
                "MTA-STS policy https://mta-sts.shop.example/.well-known/mta-sts.txt": True,
                "TLS-RPT _smtp._tls.shop.example": False,
            }
            assert found["MX shop.example"]["detail"] == "each of its hosts has an address"
            assert [one["record"] for one in found.values() if one["optional"]] == ["TLS-RPT"]
            # What is wanted is published: the keys in strings, one of them elsewhere.
            rsa, ed25519 = made.keys
            zone[rsa.name, "TXT"] = [in_strings(rsa.record)]
            zone[ed25519.name, "CNAME"] = ["key.hoster.example."]
            zone["key.hoster.example", "TXT"] = [in_strings(ed25519.record)]
            for record in ("DMARC _dmarc.shop.example", "TLS-RPT _smtp._tls.shop.example"):
                zone[found[record]["name"], "TXT"] = [in_strings(found[record]["wanted"])]
            found = await entries()
            assert all(one["ok"] for one in found.values()), json.dumps(found, indent=1)
            assert not any(one["wanted"] for one in found.values())


async def test_what_nobody_answers_is_not_called_wrong(
    database_url: str, pool: Pool, nursery: trio.Nursery
):
    """SERVFAIL: null and the reason; what leads into this network is not asked."""
    zone = {
        ("_mta-sts.shop.example", "TXT"): ['"v=STSv1; id=1"'],
        ("mta-sts.shop.example", "A"): ["127.0.0.1"],
    }
    names: DnsServer = await nursery.start(DnsServer(zone).run)
    async with open_house(database_url, pool, dns=names.address) as house:
        lost = await house.client.get("/api/v1/domains/servfail.example/check", headers=house.admin)
        by = {one["record"]: one for one in lost.json()}
        for record in ("MX", "SPF"):
            assert by[record]["ok"] is None
            assert "SERVFAIL" in by[record]["detail"]
        found = await house.client.get("/api/v1/domains/shop.example/check", headers=house.admin)
        by = {one["record"]: one for one in found.json()}
        assert by["MTA-STS policy"]["ok"] is False
        assert "not on the public internet" in by["MTA-STS policy"]["detail"]
        assert by["DKIM"]["ok"] is False


async def test_mail_with_return_paths_of_its_own_is_checked_by_their_domain(
    database_url: str, pool: Pool, nursery: trio.Nursery
):
    """MX and SPF of the domain that receivers look up: with neither, bounces are lost, and SPF of
    From's domain aligns nothing; of that domain by itself nothing is asked that From's has."""
    zone = {
        ("shop.example", "MX"): ["10 relay.shop.example."],
        ("relay.shop.example", "A"): ["9.9.9.9"],
        ("shop.example", "TXT"): ['"v=spf1 ip4:9.9.9.9 -all"'],
        ("_dmarc.shop.example", "TXT"): ['"v=DMARC1; p=reject"'],
    }
    names: DnsServer = await nursery.start(DnsServer(zone, negative=0).run)
    has_mailbox = [False]

    async def takes(_: str) -> bool:
        return has_mailbox[0]

    async def chosen() -> list[str]:
        return ["9.9.9.9"]

    async with open_house(database_url, pool, dns=names.address) as house:
        keys = DkimKeys(pool, house.keyring.vault)
        made = await keys.create("shop.example", "s1")

        async def entries(domain: str, *received: str) -> dict[tuple[str, str], Any]:
            checks = DomainChecks(
                lambda: Resolver([names.address]),
                keys,
                Senders(pool, house.keyring.vault),
                lambda resolve: Poster(resolve=resolve),
                upstream="mx:",
                received=["relay.shop.example", *received],
                bounce_domain="returns.shop.example",
                takes=takes,
                served=True,
                leaving=chosen,
            )
            return {(one.record, one.name): one for one in await checks.check(domain)}

        found = await entries("shop.example")
        mx, spf = found["MX", "shop.example"], found["SPF", "returns.shop.example"]
        assert (mx.ok, mx.wanted) == (False, None)
        assert "takes no mail for the domain" in mx.detail
        assert (spf.ok, spf.wanted) == (False, "v=spf1 ip4:9.9.9.9 ~all")
        assert found["SPF", "shop.example"].ok
        missing = found["MX", "returns.shop.example"]
        assert (missing.ok, missing.wanted) == (False, "10 relay.shop.example.")
        policy = found["DMARC", "_dmarc.shop.example"]
        assert policy.ok is False
        assert policy.detail.endswith("signs; not by SPF of returns.shop.example")
        assert found["TLS-RPT", "_smtp._tls.shop.example"].wanted is None  # it would be refused

        zone["returns.shop.example", "TXT"] = [f'"{spf.wanted}"']
        zone["returns.shop.example", "MX"] = ["10 relay.shop.example."]
        for key in made.keys:
            zone[key.name, "TXT"] = [in_strings(key.record)]
        has_mailbox[0] = True
        found = await entries("shop.example", "shop.example")
        wrong = {name for name, one in found.items() if one.ok is False and not one.optional}
        assert wrong == {("PTR", "9.9.9.9.in-addr.arpa")}
        said = found["DMARC", "_dmarc.shop.example"].detail
        assert said == "p=reject; aligned by signatures (d= is From's own domain) and SPF"
        reports = found["TLS-RPT", "_smtp._tls.shop.example"]
        assert reports.wanted == "v=TLSRPTv1; rua=mailto:postmaster@shop.example"
        # The record is advised where its policy is: alone, it would be wrong.
        assert found["MTA-STS", "_mta-sts.shop.example"].wanted is None
        policy_at = "https://mta-sts.shop.example/.well-known/mta-sts.txt"
        assert found["MTA-STS policy", policy_at].optional

        found = await entries("returns.shop.example")
        assert {record: one.ok for (record, _), one in found.items()} == {
            "MX": True,
            "SPF": True,
            "DANE": False,
            "PTR": False,
        }
        zone["returns.shop.example", "MX"] = ["10 elsewhere.example."]
        zone["elsewhere.example", "A"] = ["8.8.8.8"]
        for domain in ("returns.shop.example", "shop.example"):
            found = await entries(domain, "shop.example")
            assert found["MX", "returns.shop.example"].ok is None


@pytest.mark.parametrize(
    ("upstream", "leaving", "sources", "said"),
    [
        ("smtps://out.example:465", ["9.9.9.9"], [], {}),
        ("mx:", ["9.9.9.9"], [], {"9.9.9.9.in-addr.arpa": False}),
        ("mx:", ["10.0.0.5"], [], {"5.0.0.10.in-addr.arpa": None}),
        ("mx:", [], [], {"in-addr.arpa": None}),
        (
            "mx:",
            ["10.0.0.5"],
            [
                {"name": "shop", "addresses": ["8.8.4.4"], "senders": ["shop.example"]},
                {"name": "news", "addresses": ["1.1.1.1"], "senders": ["news@shop.example"]},
                {"name": "others", "addresses": ["8.8.8.8"]},
            ],
            {"1.1.1.1.in-addr.arpa": False, "4.4.8.8.in-addr.arpa": False},
        ),
        ("mx:", ["9.9.9.9"], [{"name": "any"}], {"9.9.9.9.in-addr.arpa": False}),
    ],
)
async def test_where_direct_mail_leaves_from_has_a_name_that_leads_back(
    database_url: str,
    pool: Pool,
    nursery: trio.Nursery,
    upstream: str,
    leaving: list[str],
    sources: list[dict[str, Any]],
    said: dict[str, bool | None],
):
    """PTR and SPF are asked for the addresses of a domain's sources, else those that the system
    chooses; of one that is not public it is said that nothing was checked; with an upstream,
    nothing is asked."""
    zone = {("shop.example", "TXT"): ['"v=spf1 -all"']}
    names: DnsServer = await nursery.start(DnsServer(zone).run)

    async def chosen() -> list[str]:
        return leaving

    async with open_house(database_url, pool, dns=names.address) as house:
        checks = DomainChecks(
            lambda: Resolver([names.address]),
            DkimKeys(pool, house.keyring.vault),
            Senders(pool, house.keyring.vault),
            lambda resolve: Poster(resolve=resolve),
            upstream=upstream,
            received=["relay.shop.example"],
            takes=postmaster,
            sources=parse_sources(sources),
            leaving=chosen,
        )
        found = await checks.check("shop.example")
    # Nothing is signed there, and who does not deliver it has no part in it.
    dane = [(one.ok, one.optional) for one in found if one.record == "DANE"]
    assert dane == ([(False, True)] if upstream == "mx:" else [])
    reversed_ = [one for one in found if one.record == "PTR"]
    assert {one.name: one.ok for one in reversed_} == said
    assert all("not checked" in one.detail for one in reversed_ if one.ok is None)
    (spf,) = (one for one in found if one.record == "SPF")
    for name, ok in said.items():
        if ok is False:
            address = ".".join(reversed(name.removesuffix(".in-addr.arpa").split(".")))
            assert f"ip4:{address}" in (spf.wanted or "")


@pytest.mark.parametrize("name", ["relay.localhost", "mail.home.arpa", "localhost"])
async def test_of_a_name_that_is_not_public_nothing_is_asked(house: House, name: str):
    """It is no mistake that it publishes nothing: nobody could."""
    answer = await house.client.get(f"/api/v1/domains/{name}/check", headers=house.admin)
    (only,) = answer.json()
    assert (only["record"], only["name"], only["type"], only["ok"]) == ("Domain", name, "", None)
    assert only["wanted"] is None
    assert "are not public" in only["detail"]


@pytest.mark.parametrize(("scopes", "status"), [(("read", "send"), 403), ((), 401)])
async def test_checking_is_the_administrators(house: House, scopes: tuple[str, ...], status: int):
    """A key that may send is told nothing of the relay's keys; a name that is none is a 422."""
    by = await house.key(*scopes) if scopes else {}
    answer = await house.client.get("/api/v1/domains/shop.example/check", headers=by)
    assert answer.status_code == status
    answer = await house.client.get("/api/v1/domains/a%20b/check", headers=house.admin)
    assert answer.status_code == 422
