"""TLSA records (RFC 6698, 7671), and whether the certificates that a server shows match them.

What a record says, and what follows for mail (RFC 7672, 3.1):

| usage       | matches                                        | and besides                       |
|-------------|------------------------------------------------|-----------------------------------|
| 3 (DANE-EE) | the server's certificate (selector 0), or its  | nothing: neither names nor dates  |
|             | key (selector 1)                               | count                             |
| 2 (DANE-TA) | the certificate, or the key, of an authority   | from there to the server's, all   |
|             | that the server shows or the record itself has | is in order (below), and its own  |
|             |                                                | certificate has a wanted name     |
| 0, 1 (PKIX) | nothing: unusable for mail                     |                                   |

In order means: each certificate is signed by the next with no broken hash, is in its time, and says
nothing critical that is not understood; each issuer is an authority that may sign so many levels
and these names; where purposes are said, a server of TLS is among them.

Promises
- A record that cannot be used (another usage, selector or matching type, a digest of another
  length, data that is no certificate or key) is told apart from one that does not match.
- Of the digests of one usage and selector the strongest decides alone (RFC 7671, 9).
- The work is bounded, whatever a stranger publishes or shows: by `MOST_RECORDS`, `MOST_SHOWN` and
  `MOST_KEYS`.  Of what an authority must match `MOST_BYTES` and `MOST_NAMES` are looked at, names
  against constraints in the sum of both, not their product; and of one chain `MOST_CHECKS`
  signatures are verified, with no RSA key of more bits than `MOST_BITS` or an exponent above
  `MOST_EXPONENT`.  What has more matches nothing.

Fails: never; what is wrong is a `Wrong`.

Why not OpenSSL's DANE: Python's ssl does not have it.  Its way of building a chain cannot be asked
for one after the handshake, either, and only then is known which authority is the one.

Pure.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterable, Sequence
from datetime import datetime
from itertools import pairwise
from typing import NamedTuple, TypeVar

from cryptography import x509
from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric import ec, ed448, ed25519, padding, rsa
from cryptography.hazmat.primitives.hashes import MD5, SHA1
from cryptography.hazmat.primitives.serialization import load_der_public_key
from cryptography.x509.oid import ExtendedKeyUsageOID, ExtensionOID, NameOID

from relay.smtp.tls_faults import TlsFault, Wrong

MOST_RECORDS = 32
"""Records of a server that are looked at."""
MOST_SHOWN = 10
"""Certificates of a server that are looked at."""
MOST_BYTES = 65_536
"""Bytes of the certificates that a server shows; a chain of three has 4 kB."""
MOST_NAMES = 1_000
"""Names of a server's certificate; public authorities sign 100 to 250."""
MOST_KEYS = 4
"""Authorities' keys that stand whole in records (2 1 0) with which signatures are verified."""
MOST_CHECKS = 24
"""Signatures of one chain that are verified."""
MOST_BITS = 4096
MOST_EXPONENT = 1 << 32

_LONGEST_NAME = 253

TRUST_ANCHOR, END_ENTITY = 2, 3
_WHOLE, _KEY = 0, 1
_EXACT, _SHA256, _SHA512 = 0, 1, 2
_LENGTHS = {_SHA256: 32, _SHA512: 64}

_UNDERSTOOD = {
    ExtensionOID.BASIC_CONSTRAINTS,
    ExtensionOID.CERTIFICATE_POLICIES,
    ExtensionOID.EXTENDED_KEY_USAGE,
    ExtensionOID.INHIBIT_ANY_POLICY,
    ExtensionOID.ISSUER_ALTERNATIVE_NAME,
    ExtensionOID.KEY_USAGE,
    ExtensionOID.NAME_CONSTRAINTS,
    ExtensionOID.POLICY_CONSTRAINTS,
    ExtensionOID.POLICY_MAPPINGS,
    ExtensionOID.SUBJECT_ALTERNATIVE_NAME,
}
_SERVES = {ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.ANY_EXTENDED_KEY_USAGE}

_OUT_OF_TIME = {
    (False, True): "it has expired",
    (False, False): "it is not valid yet",
    (True, True): "an authority of its chain has expired",
    (True, False): "an authority of its chain is not valid yet",
}

T = TypeVar("T", bound=x509.ExtensionType)

_Unreadable = (ValueError, TypeError, UnsupportedAlgorithm, x509.DuplicateExtension)


class Tlsa(NamedTuple):
    """A record."""

    usage: int
    selector: int
    matching: int
    data: bytes

    def matches(self, shown: Shown) -> bool:
        """Whether a certificate is the one that is meant."""
        selected = shown.der if self.selector == _WHOLE else shown.key
        return self.data == _digest(self.matching, selected)


class Shown:
    """A certificate: its bytes, and what is read of it when that is needed."""

    def __init__(self, der: bytes) -> None:
        self.der = der
        self.issuer, self.subject, self.key = _parts_of(der)
        """As they stand there; of the key, its SubjectPublicKeyInfo."""

    def read(self) -> x509.Certificate:
        """All of it; raises one of `_Unreadable` if it is none."""
        return x509.load_der_x509_certificate(self.der)


def parse(text: str) -> Tlsa | None:
    """A record as `relay.dns` shows it, if it can be used for mail; None: it cannot."""
    try:
        usage, selector, matching, shown = text.split(" ")
        record = Tlsa(int(usage), int(selector), int(matching), bytes.fromhex(shown))
    except ValueError:
        return None
    if record.usage not in {TRUST_ANCHOR, END_ENTITY} or record.selector not in {_WHOLE, _KEY}:
        return None
    if record.matching != _EXACT:
        return record if len(record.data) == _LENGTHS.get(record.matching) else None
    try:
        if record.selector == _KEY:
            key = load_der_public_key(record.data)
            if record.usage == TRUST_ANCHOR and _is_costly(key):
                return None
        else:
            Shown(record.data).read()
    except _Unreadable:
        return None
    return record


def usable(texts: Iterable[str]) -> tuple[Tlsa, ...]:
    """The records that can be used, the weaker digests left out; in an order that is always one."""
    found = {record for text in list(texts)[:MOST_RECORDS] if (record := parse(text)) is not None}
    return tuple(
        sorted(
            record
            for record in found
            if record.matching != _SHA256
            or not any((*record[:2], _SHA512) == other[:3] for other in found)
        )
    )


def mismatch(
    records: Collection[Tlsa], chain: Sequence[bytes], names: Collection[str], now: datetime
) -> Wrong | None:
    """Return the fault of the certificates that a server shows, its own first; None: they match.

    `names`: of which its own must have one, where an authority is what matches (A-labels in small
    letters); `now`: with a zone.
    """
    try:
        shown = [Shown(der) for der in chain[:MOST_SHOWN]]
    except ValueError:
        return Wrong(TlsFault.VALIDATION, "it cannot be read")
    if not shown:
        return Wrong(TlsFault.VALIDATION, "there is none")
    if any(record.usage == END_ENTITY and record.matches(shown[0]) for record in records):
        return None
    anchors = [record for record in records if record.usage == TRUST_ANCHOR]
    if not anchors:
        return Wrong(TlsFault.VALIDATION, "it matches no TLSA record")
    if sum(len(one.der) for one in shown) > MOST_BYTES:
        return Wrong(TlsFault.VALIDATION, "its chain is too large to be verified")
    try:
        return _from_anchor(anchors, shown, names, now)
    except _TooMany:
        return Wrong(TlsFault.NOT_TRUSTED, "its chain is too large to be verified")
    except _Unreadable:
        return Wrong(TlsFault.VALIDATION, "its chain cannot be read")


# From an authority down ---------------------------------------------------------------------------


class _Link(NamedTuple):
    """A certificate of a chain."""

    shown: Shown
    certificate: x509.Certificate
    is_anchor: bool


def _from_anchor(
    anchors: Sequence[Tlsa], shown: Sequence[Shown], names: Collection[str], now: datetime
) -> Wrong | None:
    own = shown[0].read()
    pool = [
        _Link(each, each.read(), any(one.matches(each) for one in anchors)) for each in shown[1:]
    ]
    keys: list[object] = []
    for anchor in anchors:
        if anchor.matching == _EXACT and anchor.selector == _WHOLE:
            whole = Shown(anchor.data)
            pool.append(_Link(whole, whole.read(), True))
        elif anchor.matching == _EXACT and len(keys) < MOST_KEYS:
            keys.append(load_der_public_key(anchor.data))
    pool = [link for link in pool if _has_cheap_key(link.certificate)]
    # Where two chains lead to an authority, the one whose certificates are in time goes first.
    pool.sort(key=lambda one: (not one.is_anchor, not _is_in_time(one.certificate, now)))
    links = _path([_Link(shown[0], own, False)], pool, keys, set(), _Checks())
    if links is None:
        text = "no authority of a TLSA record has signed it"
        return Wrong(TlsFault.NOT_TRUSTED, text)
    path = [link.certificate for link in links]
    for at, certificate in enumerate(path):
        if not _is_in_time(certificate, now):
            over = now > certificate.not_valid_after_utc
            return Wrong(TlsFault.EXPIRED, _OUT_OF_TIME[at > 0, over])
        if wrong := _unfit(certificate, at):
            return Wrong(TlsFault.NOT_TRUSTED, wrong)
    has = _names_of(own)
    if len(has) > MOST_NAMES:
        return Wrong(TlsFault.VALIDATION, "its chain is too large to be verified")
    domains = [_domains_of(name) for name in has]
    for certificate in path[1:]:
        if not _may_name(certificate, domains):
            return Wrong(TlsFault.NOT_TRUSTED, "an authority may not sign its names")
    if not any(_is_named(name, has) for name in names):
        return Wrong(TlsFault.HOST, f"it is not for {min(names, key=len)}")
    return None


def _is_in_time(certificate: x509.Certificate, now: datetime) -> bool:
    return certificate.not_valid_before_utc <= now <= certificate.not_valid_after_utc


class _TooMany(Exception):
    """More signatures would have to be verified than are."""


class _Checks:
    """Verifies the signatures of one chain, so many at most."""

    def __init__(self) -> None:
        self._left = MOST_CHECKS

    def by(self, link: _Link, issuer: _Link) -> bool:
        """Whether an issuer has signed a certificate; `_TooMany`."""
        # Byte for byte, as whoever verifies compares them next: to read names takes long.
        if link.shown.issuer != issuer.shown.subject:
            return False
        self._take_one()
        return _signed_by(link.certificate, issuer.certificate)

    def by_key(self, certificate: x509.Certificate, key: object) -> bool:
        """The same of a bare key."""
        self._take_one()
        return _signed_by_key(certificate, key)

    def _take_one(self) -> None:
        if self._left == 0:
            raise _TooMany
        self._left -= 1


def _has_cheap_key(certificate: x509.Certificate) -> bool:
    try:
        return not _is_costly(certificate.public_key())
    except _Unreadable:
        return False


def _is_costly(key: object) -> bool:
    """Whether to verify with a key takes so long that others would wait for it."""
    if not isinstance(key, rsa.RSAPublicKey):
        return False
    return key.key_size > MOST_BITS or key.public_numbers().e > MOST_EXPONENT


def _path(
    path: list[_Link],
    pool: Sequence[_Link],
    keys: Sequence[object],
    been: set[int],
    checks: _Checks,
) -> list[_Link] | None:
    """From the server's certificate to one that is, or was signed by, what a record has.

    `been`: which of `pool` were tried; what led nowhere once does so again.
    """
    last = path[-1]
    if any(checks.by_key(last.certificate, key) for key in keys):
        return path
    for at, issuer in enumerate(pool):
        if at in been or not checks.by(last, issuer):
            continue
        been.add(at)
        if issuer.is_anchor:
            return [*path, issuer]
        if (found := _path([*path, issuer], pool, keys, been, checks)) is not None:
            return found
    return None


def _signed_by(certificate: x509.Certificate, issuer: x509.Certificate) -> bool:
    if isinstance(certificate.signature_hash_algorithm, MD5 | SHA1):
        return False
    try:
        certificate.verify_directly_issued_by(issuer)
    except (InvalidSignature, *_Unreadable):
        return False
    return True


def _signed_by_key(certificate: x509.Certificate, key: object) -> bool:
    """Whether a bare key has signed it, whatever its owner is called."""
    if isinstance(certificate.signature_hash_algorithm, MD5 | SHA1):
        return False
    signature, signed = certificate.signature, certificate.tbs_certificate_bytes
    try:
        parameters = certificate.signature_algorithm_parameters
        hashed = certificate.signature_hash_algorithm
        match key, parameters:
            case rsa.RSAPublicKey(), (padding.PKCS1v15() | padding.PSS()) if hashed:
                key.verify(signature, signed, parameters, hashed)
            case ec.EllipticCurvePublicKey(), ec.ECDSA():
                key.verify(signature, signed, parameters)
            case ((ed25519.Ed25519PublicKey() | ed448.Ed448PublicKey()), None):
                key.verify(signature, signed)
            case _:
                return False
    except (InvalidSignature, *_Unreadable):
        return False
    return True


def _unfit(certificate: x509.Certificate, at: int) -> str | None:
    """Why a certificate cannot stand where it does in a chain, 0 for the server's; a clause."""
    for extension in certificate.extensions:
        if extension.critical and extension.oid not in _UNDERSTOOD:
            return "a certificate of its chain demands what is not understood"
    purposes = _extension(certificate, x509.ExtendedKeyUsage)
    if purposes is not None and not _SERVES & set(purposes):
        return "a certificate of its chain is for another purpose"
    if at == 0:
        return None
    constraints = _extension(certificate, x509.BasicConstraints)
    usage = _extension(certificate, x509.KeyUsage)
    if constraints is None or not constraints.ca or (usage and not usage.key_cert_sign):
        return "what has signed in its chain is no authority"
    if constraints.path_length is not None and at - 1 > constraints.path_length:
        return "an authority of its chain may not sign others"
    return None


def _extension(certificate: x509.Certificate, kind: type[T]) -> T | None:
    try:
        return certificate.extensions.get_extension_for_class(kind).value
    except x509.ExtensionNotFound:
        return None


# Names --------------------------------------------------------------------------------------------


def _names_of(certificate: x509.Certificate) -> list[str]:
    """Its dNSNames; where it has none, its common name."""
    alternative = _extension(certificate, x509.SubjectAlternativeName)
    names = [] if alternative is None else alternative.get_values_for_type(x509.DNSName)
    if not names:
        common = certificate.subject.get_attributes_for_oid(NameOID.COMMON_NAME)
        names = [str(one.value) for one in common[-1:]]
    return [name.lower().removesuffix(".") for name in names]


def _is_named(name: str, has: Collection[str]) -> bool:
    """Whether a certificate with these names is for one; `*.` stands for one label."""
    above = name.partition(".")[2]
    return name in has or ("." in above and f"*.{above}" in has)


def _domains_of(name: str) -> frozenset[str]:
    """A name and all domains that it is in, the root (empty), too; none: it is no name."""
    if len(name) > _LONGEST_NAME:
        return frozenset()
    found = {name, ""}
    while name:
        name = name.partition(".")[2]
        found.add(name)
    return frozenset(found)


def _may_name(issuer: x509.Certificate, names: Sequence[frozenset[str]]) -> bool:
    """Whether an authority's name constraints let it sign for these (RFC 5280, 4.2.1.10).

    `names`: of each, what `_domains_of` it.
    """
    constraints = _extension(issuer, x509.NameConstraints)
    if constraints is None:
        return True
    permitted = constraints.permitted_subtrees or []
    excluded = constraints.excluded_subtrees or []
    if any(isinstance(one, x509.DirectoryName) for one in (*permitted, *excluded)):
        return False  # not looked at, so nothing is said of them
    inside, outside = _trees_of(permitted), _trees_of(excluded)
    # The smaller of two sets is what is gone through: the work is that of the names.
    return all(
        domains and outside.isdisjoint(domains) and not (inside and inside.isdisjoint(domains))
        for domains in names
    )


def _trees_of(subtrees: Iterable[x509.GeneralName]) -> frozenset[str]:
    return frozenset(
        one.value.lower().removeprefix(".") for one in subtrees if isinstance(one, x509.DNSName)
    )


# Bytes --------------------------------------------------------------------------------------------


def _digest(matching: int, data: bytes) -> bytes:
    match matching:
        case 1:
            return hashlib.sha256(data).digest()
        case 2:
            return hashlib.sha512(data).digest()
    return data


def key_of(der: bytes) -> bytes:
    """The SubjectPublicKeyInfo of a certificate, byte for byte.  ValueError: it is none.

    Not made anew from what was read: records are of the bytes, and of keys that nobody here knows.
    """
    return _parts_of(der)[2]


def _parts_of(der: bytes) -> tuple[bytes, bytes, bytes]:
    """The issuer, the subject and the key of a certificate, likewise."""
    _, start, end = _element(der, 0, len(der))  # Certificate
    _, start, end = _element(der, start, end)  # TBSCertificate
    tag, _, after = _element(der, start, end)
    at = after if tag == 0xA0 else start  # the version, which may be left out
    ends = [at]
    for _ in range(6):  # serialNumber, signature, issuer, validity, subject, subjectPublicKeyInfo
        ends.append(_element(der, ends[-1], end)[2])
    _, _, *bounds = ends
    issuer, _, subject, key = (der[start:stop] for start, stop in pairwise(bounds))
    return issuer, subject, key


def _element(der: bytes, at: int, limit: int) -> tuple[int, int, int]:
    """The tag of the element at `at`, and where its content begins and ends."""
    if at + 2 > limit:
        raise ValueError("it ends too soon")
    tag, length = der[at], der[at + 1]
    start = at + 2
    if length & 0x80:
        octets = length & 0x7F
        if not 0 < octets <= 4:
            raise ValueError("a length of no kind")
        length = int.from_bytes(der[start : start + octets], "big")
        start += octets
    if start + length > limit:
        raise ValueError("it ends too soon")
    return tag, start, start + length
