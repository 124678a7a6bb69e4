"""TLSA records: what can be used, and what matches, held to OpenSSL's own DANE."""

from __future__ import annotations

import datetime
import shutil
import socket
import subprocess
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ed25519, rsa
from cryptography.x509.oid import ExtendedKeyUsageOID
from hypothesis import given
from hypothesis import strategies as st

from relay.outbound.mx import tlsa
from relay.outbound.mx.tlsa import (
    MOST_BYTES,
    MOST_CHECKS,
    MOST_NAMES,
    MOST_SHOWN,
    key_of,
    mismatch,
    parse,
    usable,
)
from relay.smtp.tls_faults import TlsFault, Wrong
from tests.outbound.mx.pki import Issued, issue, serving

NAME = "mx.example"


class Case(NamedTuple):
    """What a server shows, what is published, and what follows."""

    chain: tuple[Issued, ...]
    records: tuple[str, ...]
    fault: TlsFault | None = None


def _constraints(
    permitted: str | None, excluded: str | None = None
) -> tuple[x509.NameConstraints, bool]:
    return x509.NameConstraints(
        [x509.DNSName(permitted)] if permitted else None,
        [x509.DNSName(excluded)] if excluded else None,
    ), True


def _usage(*, signs: bool) -> tuple[x509.KeyUsage, bool]:
    return x509.KeyUsage(True, False, False, False, False, signs, signs, False, False), True


def _purpose(purpose: x509.ObjectIdentifier) -> tuple[x509.ExtendedKeyUsage, bool]:
    return x509.ExtendedKeyUsage([purpose]), False


def _cases() -> dict[str, Case]:
    root = issue("root", ca=True)
    middle = issue("middle", root, ca=True)
    own = issue("a server", middle, names=[NAME])
    chain = (own, middle, root)
    other = issue("another", ca=True)
    alone = issue("www.example")
    old = issue("old", middle, names=[NAME], days=-1)
    cases: dict[str, Case] = {}
    for selector in (0, 1):
        for matching in (0, 1, 2):
            which = f"{selector} {matching}"
            cases[f"3 {which}"] = Case(chain, (own.record(3, selector, matching),))
            cases[f"3 {which}, another's"] = Case(
                chain, (other.record(3, selector, matching),), TlsFault.VALIDATION
            )
            cases[f"3 {which}, the authority's"] = Case(
                chain, (middle.record(3, selector, matching),), TlsFault.VALIDATION
            )
            cases[f"2 {which}, root"] = Case(chain, (root.record(2, selector, matching),))
            cases[f"2 {which}, middle"] = Case(chain, (middle.record(2, selector, matching),))
            cases[f"2 {which}, middle alone"] = Case(
                (own, middle), (middle.record(2, selector, matching),)
            )
            cases[f"2 {which}, root not shown"] = Case(
                (own, middle),
                (root.record(2, selector, matching),),
                TlsFault.NOT_TRUSTED if matching else None,
            )
            cases[f"2 {which}, another's"] = Case(
                chain, (other.record(2, selector, matching),), TlsFault.NOT_TRUSTED
            )
            cases[f"2 {which}, another's, shown"] = Case(
                (*chain, other), (other.record(2, selector, matching),), TlsFault.NOT_TRUSTED
            )
    cases |= {
        "3, old": Case((old, middle), (old.record(3, 1, 1),)),
        "3, another name, by itself": Case((alone,), (alone.record(3, 1, 1),)),
        "2, old": Case((old, middle), (middle.record(2, 1, 1),), TlsFault.EXPIRED),
        "2, another name": Case(
            (issue("x", middle, names=["www.example"]), middle),
            (middle.record(2, 1, 1),),
            TlsFault.HOST,
        ),
        "2 and 3, another name": Case((alone, root), (root.record(2, 1, 1), alone.record(3, 0, 2))),
        "2, star": Case(
            (issue("x", middle, names=["*.example", "y"]), middle),
            (middle.record(2, 1, 1),),
            TlsFault.HOST,
        ),
        "2, the common name": Case((issue(NAME, middle), middle), (middle.record(2, 1, 1),)),
        "2, the common name, beside others": Case(
            (issue(NAME, middle, names=["www.example"]), middle),
            (middle.record(2, 1, 1),),
            TlsFault.HOST,
        ),
        "one of two": Case(chain, (other.record(3, 1, 1), own.record(3, 1, 1))),
        "the stronger digest is wrong": Case(
            chain, (own.record(3, 1, 1), other.record(3, 1, 2)), TlsFault.VALIDATION
        ),
        "the weaker digest is wrong": Case(chain, (other.record(3, 1, 1), own.record(3, 1, 2))),
        "in another order": Case((own, root, middle), (root.record(2, 0, 1),)),
    }
    # What an authority may not.
    for name, bad in {
        "no authority": issue("no", root, ca=False),
        "nothing said": issue("no", root),
        "may not sign": issue("no", root, _usage(signs=False), ca=True),
        "old": issue("no", root, ca=True, days=-1),
        "permits others": issue("no", root, _constraints("other.example"), ca=True),
        "excludes it": issue("no", root, _constraints(None, "example"), ca=True),
        "for mail": issue("no", root, _purpose(ExtendedKeyUsageOID.EMAIL_PROTECTION), ca=True),
        "demands": issue(
            "no", root, (x509.UnrecognizedExtension(x509.ObjectIdentifier("1.2.3"), b"\5\0"), True),
            ca=True,
        ),
    }.items():  # fmt: skip
        fault = TlsFault.EXPIRED if name == "old" else TlsFault.NOT_TRUSTED
        shown = (issue("x", bad, names=[NAME]), bad, root)
        cases[f"2, an authority: {name}"] = Case(shown, (root.record(2, 0, 1),), fault)
    for name, good in {
        "may sign": issue("yes", root, _usage(signs=True), ca=True),
        "permits it": issue("yes", root, _constraints("example"), ca=True),
        "excludes others": issue("yes", root, _constraints(None, "other.example"), ca=True),
        "for servers": issue("yes", root, _purpose(ExtendedKeyUsageOID.SERVER_AUTH), ca=True),
        "signs no other": issue("yes", root, ca=True, path_length=0),
        "RSA": issue("yes", root, ca=True, key=rsa.generate_private_key(65537, 2048)),
        "Ed25519": issue("yes", root, ca=True, key=ed25519.Ed25519PrivateKey.generate()),
    }.items():
        shown = (issue("x", good, names=[NAME]), good, root)
        cases[f"2, an authority: {name}"] = Case(shown, (root.record(2, 0, 1),))
        cases[f"2 1 0, a key: {name}"] = Case(shown[:1], (good.record(2, 1, 0),))
    short = issue("short", root, ca=True, path_length=0)
    below = issue("below", short, ca=True)
    cases["2, below one that signs no other"] = Case(
        (issue("x", below, names=[NAME]), below, short, root),
        (root.record(2, 0, 1),),
        TlsFault.NOT_TRUSTED,
    )
    cases["2, for clients"] = Case(
        (issue("x", middle, _purpose(ExtendedKeyUsageOID.CLIENT_AUTH), names=[NAME]), middle),
        (middle.record(2, 0, 1),),
        TlsFault.NOT_TRUSTED,
    )
    # The same authority twice, once too old: there is a way that is not.
    again = issue("middle", root, ca=True, days=-1, key=middle.private)
    cases["2, two ways"] = Case((own, again, middle, root), (root.record(2, 0, 1),))
    return cases


CASES = _cases()


@pytest.mark.parametrize("name", CASES)
def test_what_matches(name):
    """Each usage, selector and matching type; what is in order, and what is not."""
    case = CASES[name]
    found = mismatch(
        usable(case.records),
        [one.der for one in case.chain],
        [NAME],
        datetime.datetime.now(datetime.UTC),
    )
    assert (found and found.fault) == case.fault, found


UNLIKE = {
    # A label alone under `*.`: it would stand for all of a top-level domain.
    "2, star": "OpenSSL takes *.example for mx.example"
}


@pytest.mark.skipif(shutil.which("openssl") is None, reason="no openssl")
def test_as_openssl_has_it(tmp_path: Path):
    """A real handshake by `openssl s_client`, which has DANE of its own, ends likewise."""
    unlike = {}
    for name, case in CASES.items():
        ends_well = _openssl(tmp_path, case)
        if ends_well != (case.fault is None):
            unlike[name] = ends_well
    assert set(unlike) <= set(UNLIKE), unlike


def _openssl(folder: Path, case: Case) -> bool:
    context = serving(folder, case.chain)
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve() -> None:
            with suppress(OSError):
                sock, _ = listener.accept()
                with context.wrap_socket(sock, server_side=True) as tls:
                    tls.recv(1)

        server = threading.Thread(target=serve)
        server.start()
        port = listener.getsockname()[1]
        command = ["openssl", "s_client", "-connect", f"127.0.0.1:{port}", "-servername", NAME]
        command += ["-dane_tlsa_domain", NAME, "-dane_ee_no_namechecks", "-verify_return_error"]
        for record in case.records:
            command += ["-dane_tlsa_rrdata", record]
        done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, timeout=20)
        server.join()
    return done.returncode == 0 and b"Verify return code: 0 (ok)" in done.stdout


@pytest.mark.parametrize(
    "text",
    [
        "0 1 1 " + "ab" * 32,
        "1 1 1 " + "ab" * 32,
        "4 1 1 " + "ab" * 32,
        "255 1 1 " + "ab" * 32,
        "3 2 1 " + "ab" * 32,
        "3 1 3 " + "ab" * 32,
        "3 1 1 " + "ab" * 31,
        "3 1 1 " + "ab" * 33,
        "3 1 1 ",
        "3 1 2 " + "ab" * 32,
        "3 0 0 " + "ab" * 32,
        "2 1 0 3003020101",
        "3 1 1",
        "",
    ],
)
def test_what_cannot_be_used(text):
    """PKIX usages, what nobody knows, and what is cut short, are told apart."""
    assert parse(text) is None
    assert usable([text]) == ()


def test_which_records_count():
    """Of the digests of one usage and selector the strongest; one order, whatever the DNS's was."""
    short, long = "ab" * 32, "cd" * 64
    texts = [f"3 1 1 {short}", f"3 1 2 {long}", f"2 1 1 {short}", f"3 0 1 {short}", "0 0 0 ab"]
    kept = [f"2 1 1 {short}", f"3 0 1 {short}", f"3 1 2 {long}"]
    assert usable(texts) == usable(texts[::-1]) == tuple(map(parse, kept))


def test_a_certificate_of_any_name():
    """Any of the wanted names is enough; `*.` stands for one label."""
    root = issue("root", ca=True)
    now = datetime.datetime.now(datetime.UTC)
    records = usable([root.record(2, 0, 1)])

    def fits(has: str, *names: str) -> bool:
        return mismatch(records, [issue("x", root, names=[has]).der, root.der], names, now) is None

    assert fits("shop.example", "mx.example", "shop.example")
    assert fits("MX.Example", "mx.example")
    assert fits("*.mail.example", "mx.mail.example")
    assert not fits("*.mail.example", "a.mx.mail.example")
    assert not fits("*.mail.example", "mail.example")
    assert not fits("m*.mail.example", "mx.mail.example")


@given(
    st.binary(max_size=200)
    | st.builds(lambda n: CASES["3 0 1"].chain[0].der[:n], st.integers(0, 300))
)
def test_any_bytes_are_read_or_refused(shown):
    """What a server shows is in nobody's hand but its own."""
    now = datetime.datetime.now(datetime.UTC)
    for texts in (["3 1 1 " + "ab" * 32], [CASES["3 0 1"].chain[1].record(2, 1, 0)]):
        found = mismatch(usable(texts), [shown], [NAME], now)
        assert isinstance(found, Wrong)
    with suppress(ValueError):
        key_of(shown)


def test_many_authorities_that_sign_each_other_cost_little():
    """A server can show what has as many ways through it as it likes; each is gone once."""
    root = issue("root", ca=True)
    ring = [issue("ring", root, ca=True)]
    for _ in range(MOST_SHOWN):
        # All of one name and key: each could have signed each.
        ring.append(issue("ring", ring[-1], ca=True, key=ring[0].private))
    chain = [one.der for one in (issue("x", ring[0], names=[NAME]), *ring)]
    now = datetime.datetime.now(datetime.UTC)
    found = mismatch(usable([issue("no", ca=True).record(2, 0, 1)]), chain, [NAME], now)
    assert found is not None
    assert found.fault is TlsFault.NOT_TRUSTED


def test_no_chain_has_more_signatures_verified_than_so_many(monkeypatch):
    """Whatever keys are published and however long it is; and what is wrong is said."""
    verified: list[object] = []

    def counted(real: Callable[[x509.Certificate, Any], bool]) -> Callable[..., bool]:
        def verify(certificate: x509.Certificate, by: object) -> bool:
            verified.append(by)
            return real(certificate, by)

        return verify

    for name in ("_signed_by", "_signed_by_key"):
        monkeypatch.setattr(tlsa, name, counted(getattr(tlsa, name)))
    chain = [issue("0", ca=True)]
    for number in range(1, MOST_SHOWN):
        chain.append(issue(str(number), chain[-1], ca=True))
    chain[-1] = issue("x", chain[-2], names=[NAME])
    shown = [one.der for one in reversed(chain)]
    now = datetime.datetime.now(datetime.UTC)
    strangers = usable([issue("no", ca=True).record(2, 1, 0) for _ in range(29)])
    found = mismatch(strangers, shown, [NAME], now)
    assert found == Wrong(TlsFault.NOT_TRUSTED, "its chain is too large to be verified")
    assert len(verified) == MOST_CHECKS
    verified.clear()
    assert mismatch(usable([chain[0].record(2, 1, 1)]), shown, [NAME], now) is None
    assert len(verified) <= MOST_SHOWN


def _shown(names: int, trees: int) -> list[Issued]:
    """What a server shows that has so many names, of an authority with so many constraints."""
    excluded = [x509.DNSName("b")] * trees
    root = issue("root", None, (x509.NameConstraints(None, excluded), True), ca=True)
    return [issue("x", root, names=[NAME, *(["a"] * (names - 1))]), root]


def _mismatch(chain: list[Issued]) -> Wrong | None:
    now = datetime.datetime.now(datetime.UTC)
    return mismatch(usable([chain[-1].record(2, 1, 1)]), [one.der for one in chain], [NAME], now)


def test_names_and_constraints_cost_their_sum():
    """Both are the server's to choose: in a chain that counts, each could have ten thousand."""

    def calls(names: int, trees: int) -> int:
        """Calls that are made, those of the interpreter's own functions among them."""
        chain = _shown(names, trees)
        made = 0

        def count(_frame: object, event: str, _arg: object) -> None:
            nonlocal made
            made += event in {"call", "c_call"}

        sys.setprofile(count)
        try:
            assert _mismatch(chain) is None
        finally:
            sys.setprofile(None)
        return made

    few = calls(100, 100)
    assert calls(400, 400) < 6 * few  # not sixteen times as much


def test_no_more_is_looked_at_than_so_much():
    """Of what an authority must match; the records that name the server's own key need no look."""
    assert _mismatch(_shown(MOST_NAMES, 1)) is None
    found = _mismatch(_shown(MOST_NAMES + 1, 1))
    assert found == Wrong(TlsFault.VALIDATION, "its chain is too large to be verified")
    large = _shown(1, MOST_BYTES // 5)
    assert len(large[-1].der) > MOST_BYTES
    found = _mismatch(large)
    assert found == Wrong(TlsFault.VALIDATION, "its chain is too large to be verified")
    now = datetime.datetime.now(datetime.UTC)
    own = usable([large[0].record(3, 1, 1)])
    assert mismatch(own, [one.der for one in large], [NAME], now) is None


def test_what_is_no_name_is_not_signed_under_constraints():
    """A label for each of a thousand dots would cost their square."""
    root = issue("root", None, _constraints(None, "other.example"), ca=True)
    chain = [issue("x", root, names=[NAME, "a." * 500 + "example"]), root]
    found = _mismatch(chain)
    assert found == Wrong(TlsFault.NOT_TRUSTED, "an authority may not sign its names")


@pytest.mark.parametrize(("bits", "exponent"), [(16384, 65537), (2048, (1 << 40) + 1)])
def test_no_key_that_takes_long_verifies_anything(monkeypatch, bits, exponent):
    """Neither as a record, nor as the key of an authority that is shown."""
    private = rsa.generate_private_key(65537, 2048)
    # A number of so many bits will do: nothing is to be verified with it.
    costly = rsa.RSAPublicNumbers(exponent, (1 << bits) - 1).public_key()
    encoded = costly.public_bytes(
        serialization.Encoding.DER, serialization.PublicFormat.SubjectPublicKeyInfo
    )
    assert parse(f"2 1 0 {encoded.hex()}") is None
    assert parse(f"3 1 0 {encoded.hex()}") is not None  # of which the bytes are compared alone
    authority = issue("costly", ca=True, key=private)
    now = datetime.datetime.now(datetime.UTC)
    builder = x509.CertificateBuilder(
        authority.certificate.issuer,
        authority.certificate.subject,
        costly,
        authority.certificate.serial_number,
        authority.certificate.not_valid_before_utc,
        authority.certificate.not_valid_after_utc,
    )
    false = Issued(builder.sign(private, hashes.SHA256()), private)
    own = issue("x", authority, names=[NAME])
    asked: list[object] = []

    def verify(_certificate: x509.Certificate, by: object) -> bool:
        asked.append(by)
        return False

    monkeypatch.setattr(tlsa, "_signed_by", verify)
    found = mismatch(usable([false.record(2, 0, 1)]), [own.der, false.der], [NAME], now)
    assert found is not None
    assert found.fault is TlsFault.NOT_TRUSTED
    assert asked == []
