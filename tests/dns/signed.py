"""A signed root of a test's own: zones signed here, served by nsd, validated by unbound.

All on loopback: nsd has the root zone, in which every signed name stands, and unsigned zones below
it; unbound resolves and validates with the root's key as its anchor, and is what a relay asks.
What cannot be run is skipped: `programs`.
"""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Collection, Iterable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path

import dns.dnssec
import dns.exception
import dns.flags
import dns.message
import dns.name
import dns.query
import dns.rdataset
import dns.rdatatype
import dns.rrset
import dns.zone
import pytest
from cryptography.hazmat.primitives.asymmetric import ec

from relay.db.cluster import namespace_command

Records = Mapping[tuple[str, str], Sequence[str]]
"""By name (without the final dot) and type, as a zone file has them."""

_NSD = """
server:
    ip-address: {host}@{port}
    username: ""
    chroot: ""
    zonesdir: "{folder}"
    database: ""
    pidfile: "{folder}/nsd.pid"
    xfrdfile: ""
    zonelistfile: "{folder}/zone.list"
    server-count: 1
    verbosity: 0
remote-control:
    control-enable: no
{zones}
"""

_UNBOUND = """
server:
    interface: {host}
    port: {port}
    username: ""
    chroot: ""
    directory: "{folder}"
    pidfile: "{folder}/unbound.pid"
    use-syslog: no
    logfile: "{folder}/unbound.log"
    do-daemonize: no
    do-ip6: no
    do-not-query-localhost: no
    access-control: 127.0.0.0/8 allow
    module-config: "validator iterator"
    trust-anchor: "{anchor}"
    trust-anchor-signaling: no
    qname-minimisation: no
    num-threads: 1
    so-reuseport: no
remote-control:
    control-enable: no
{zones}
"""


def programs() -> tuple[str, str]:
    """Where nsd and unbound are; skips where they are not."""
    path = f"{os.environ['PATH']}:/usr/sbin"
    found = [shutil.which(name, path=path) for name in ("nsd", "unbound")]
    if not all(found):
        pytest.skip("nsd and unbound are not installed")
    return str(found[0]), str(found[1])


class SignedDns:
    """The servers, until closed; `address` is what a relay asks."""

    def __init__(
        self,
        records: Records,
        *,
        unsigned: Mapping[str, Records],
        bogus: Collection[tuple[str, str]] = (),
        host: str = "127.0.0.1",
        port: int = 0,
    ) -> None:
        """`records` of the root zone; `unsigned`: zones below it that are not signed; `bogus`:
        records of the root zone whose signatures are broken; `host` and `port` of the resolver.
        """
        nsd, unbound = programs()
        self.folder = Path(tempfile.mkdtemp(prefix="relay-dns-"))
        key = ec.generate_private_key(ec.SECP256R1())
        public = dns.dnssec.make_dnskey(key.public_key(), "ECDSAP256SHA256", flags=257)
        zone = _zone(".", records, unsigned)
        now = datetime.now(UTC)
        dns.dnssec.sign_zone(
            zone,
            keys=[(key, public)],
            inception=now - timedelta(hours=1),
            expiration=now + timedelta(days=7),
            dnskey_ttl=300,
            add_dnskey=True,
        )
        for name, kind in bogus:
            _break(zone, name, kind)
        zone.to_file(str(self.folder / "root.zone"), relativize=False)
        zones = [(".", "root.zone")]
        for name, inside in unsigned.items():
            _zone(name + ".", inside, {}).to_file(
                str(self.folder / f"{name}.zone"), relativize=False
            )
            zones.append((name, f"{name}.zone"))
        authority = _free_port(host)
        (self.folder / "nsd.conf").write_text(
            _NSD.format(
                host=host,
                port=authority,
                folder=self.folder,
                zones="\n".join(f'zone:\n    name: "{n}"\n    zonefile: "{f}"' for n, f in zones),
            )
        )
        self.address = (host, port or _free_port(host))
        stub = 'stub-zone:\n    name: "{}"\n    stub-addr: {}@{}\n'
        (self.folder / "unbound.conf").write_text(
            _UNBOUND.format(
                host=host,
                port=self.address[1],
                folder=self.folder,
                anchor=f". IN DNSKEY {public.to_text()}",
                zones="\n".join(stub.format(name, host, authority) for name, _ in zones),
            )
        )
        # In a namespace of its own nobody may have a port of the system's.
        namespace = os.geteuid() == 0 and not 0 < port < 1024
        prefix = (namespace_command() or []) if namespace else []
        self._log = (self.folder / "log").open("wb")
        self._processes = [
            subprocess.Popen(
                [*prefix, *command],
                stdin=subprocess.DEVNULL,
                stdout=self._log,
                stderr=self._log,
            )
            for command in (
                [nsd, "-d", "-c", str(self.folder / "nsd.conf")],
                [unbound, "-d", "-c", str(self.folder / "unbound.conf")],
            )
        ]

    def __enter__(self) -> SignedDns:
        deadline = time.monotonic() + 20
        while not self._answers():
            if time.monotonic() > deadline:
                logs = [self.folder / name for name in ("log", "unbound.log")]
                said = "".join(log.read_text(errors="replace") for log in logs if log.exists())
                self.__exit__()
                raise AssertionError(said)
            time.sleep(0.05)
        return self

    def __exit__(self, *_: object) -> None:
        for process in self._processes:
            process.terminate()
        for process in self._processes:
            process.wait(10)
        self._log.close()
        shutil.rmtree(self.folder, ignore_errors=True)

    def _answers(self) -> bool:
        """Whether the root is answered for, and validated."""
        query = dns.message.make_query(".", "NS", flags=dns.flags.RD | dns.flags.AD)
        try:
            answer = dns.query.udp(query, self.address[0], port=self.address[1], timeout=1.0)
        except (OSError, dns.exception.DNSException):
            return False
        return bool(answer.flags & dns.flags.AD and answer.answer)


def _zone(origin: str, records: Records, below: Iterable[str]) -> dns.zone.Zone:
    lines = ["$TTL 300", f"{origin} SOA ns.root. admin.root. 1 3600 600 86400 60"]
    lines += [f"{origin} NS ns.root."]
    if origin == ".":
        lines += ["ns.root. A 127.0.0.1", *(f"{name}. NS ns.root." for name in below)]
    for (name, kind), each in records.items():
        lines += [f"{name}. {kind} {record}" for record in each]
    text = "\n".join(lines) + "\n"
    return dns.zone.from_text(text, origin=origin, relativize=False, check_origin=True)


def _break(zone: dns.zone.Zone, name: str, kind: str) -> None:
    """Have the signature of a record be another's."""
    covers = dns.rdatatype.from_text(kind)
    found = zone.find_rdataset(name + ".", dns.rdatatype.RRSIG, covers)
    (signature,) = found
    broken = signature.signature[:-1] + bytes([signature.signature[-1] ^ 1])
    rdata = signature.replace(signature=broken)
    zone.replace_rdataset(name + ".", dns.rdataset.from_rdata(300, rdata))


def _free_port(host: str) -> int:
    """A port that is free for UDP and TCP."""
    while True:
        with socket.socket() as tcp, socket.socket(type=socket.SOCK_DGRAM) as udp:
            tcp.bind((host, 0))
            try:
                udp.bind(tcp.getsockname())
            except OSError:
                continue
            return int(tcp.getsockname()[1])
