"""A Postfix with DANE, beside the relay: what it decides about the same domains.

It runs from where `tests.bench.postfix` finds one, with a configuration and a queue of its own, in
a mount namespace in which /etc/resolv.conf names the resolver of the test; so only root can.  Each
domain's next hop is the domain itself at the port of the receivers (MX records are looked up, TLSA
at that port).  MTA-STS it has none.
"""

from __future__ import annotations

import os
import pwd
import re
import shutil
import smtplib
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterable
from pathlib import Path

from tests.bench import postfix
from tests.outbound.mx.cases import OWN

_MAIN = """
compatibility_level = 3.6
queue_directory = {home}/queue
data_directory = {home}/data
daemon_directory = {daemons}
shlib_directory = {libraries}
command_directory = {commands}
mail_owner = {owner}
setgid_group = uucp
default_privs = nobody
import_environment = MAIL_CONFIG LD_LIBRARY_PATH={libraries}
inet_interfaces = 127.0.0.1
inet_protocols = {protocols}
smtp_bind_address = 127.0.0.1
myhostname = {name}
mydestination =
mynetworks = 127.0.0.0/8
transport_maps = texthash:{home}/config/transport
alias_maps =
notify_classes =
smtpd_recipient_restrictions = permit_mynetworks, reject
smtpd_client_connection_count_limit = 0
default_process_limit = 60
smtp_dns_support_level = dnssec
smtp_tls_security_level = dane
smtp_tls_dane_insecure_mx_policy = may
smtp_connect_timeout = 10s
smtp_helo_timeout = 20s
maillog_file_prefixes = {home}
maillog_file = {home}/log
"""

_MASTER = """
127.0.0.1:{port} inet n - n - - smtpd
cleanup unix n - n - 0 cleanup
qmgr unix n - n 300 1 qmgr
rewrite unix - - n - - trivial-rewrite
bounce unix - - n - 0 bounce
defer unix - - n - 0 bounce
trace unix - - n - 0 bounce
proxymap unix - - n - - proxymap
smtp unix - - n - - smtp
scache unix - - n - 1 scache
retry unix - - n - - error
error unix - - n - - error
tlsmgr unix - - n 1000? 1 tlsmgr
anvil unix - - n - 1 anvil
postlog unix-dgram n - n - 1 postlogd
"""

_DIRECTORIES = (
    *("active", "bounce", "corrupt", "defer", "deferred", "flush", "hold", "incoming", "private"),
    *("saved", "trace", "public", "maildrop"),
)

_RESULT = re.compile(r"to=<([^>]*)>.*? dsn=([0-9.]+), status=(\w+) \((.*)\)$")


def available() -> bool:
    """Whether it can be run here."""
    if not postfix.available() or shutil.which("unshare") is None:
        return False
    return subprocess.run(["unshare", "-m", "true"], capture_output=True).returncode == 0


class DanePostfix:
    """It, until closed."""

    def __init__(
        self, resolver: str, domains: Iterable[str], port: int, *, ipv6: bool = False
    ) -> None:
        """`resolver`: an address whose port 53 is asked; `port` of the domains' servers; `ipv6`:
        whether they may be reached by that, too."""
        tree = postfix._tree()
        assert tree is not None
        self.home = home = Path(tempfile.mkdtemp(prefix="relay-postfix-"))
        home.chmod(0o755)
        libraries = tree / "usr/lib/postfix"
        owner = pwd.getpwnam("daemon")
        for name in ("config", "data", "queue/pid", *(f"queue/{one}" for one in _DIRECTORIES)):
            (home / name).mkdir(parents=True)
        for name in _DIRECTORIES:
            (home / "queue" / name).chmod(0o700)
            os.chown(home / "queue" / name, owner.pw_uid, 0)
        os.chown(home / "data", owner.pw_uid, 0)
        with socket.create_server(("127.0.0.1", 0)) as listener:
            self.port: int = listener.getsockname()[1]
        (home / "config/main.cf").write_text(
            _MAIN.format(
                home=home,
                daemons=libraries / "sbin",
                libraries=libraries,
                commands=tree / "usr/sbin",
                owner=owner.pw_name,
                protocols="all" if ipv6 else "ipv4",
                name=OWN,
            )
        )
        (home / "config/master.cf").write_text(_MASTER.format(port=self.port))
        (home / "config/transport").write_text(
            "".join(f"{domain} smtp:{domain}:{port}\n" for domain in domains)
        )
        (home / "resolv.conf").write_text(f"nameserver {resolver}\noptions timeout:10 trust-ad\n")
        bound = f"mount --bind {home}/resolv.conf /etc/resolv.conf"
        master = f"exec {libraries}/sbin/master -c {home}/config -d"
        self._process = subprocess.Popen(
            ["unshare", "-m", "sh", "-c", f"{bound} && {master}"],
            env={"PATH": os.environ["PATH"], "LD_LIBRARY_PATH": str(libraries)},
            stdin=subprocess.DEVNULL,
            start_new_session=True,
        )

    def __enter__(self) -> DanePostfix:
        deadline = time.monotonic() + 20
        while True:
            try:
                with smtplib.SMTP("127.0.0.1", self.port, timeout=5):
                    return self
            except (OSError, smtplib.SMTPException):
                if self._process.poll() is not None or time.monotonic() > deadline:
                    self.__exit__()
                    raise
                time.sleep(0.1)

    def send(self, addresses: Iterable[str]) -> None:
        """Queue a mail to each."""
        with smtplib.SMTP("127.0.0.1", self.port, timeout=60) as client:
            for address in addresses:
                options = () if address.isascii() else ("SMTPUTF8",)
                client.sendmail("", [address], b"Subject: beside\r\n\r\ntext\r\n", options)

    def results(self) -> dict[str, tuple[str, str, str]]:
        """What became of mail at its first attempt: its status, code and why, by address."""
        found: dict[str, tuple[str, str, str]] = {}
        log = self.home / "log"
        for line in log.read_text(errors="replace").splitlines() if log.exists() else ():
            if matched := _RESULT.search(line):
                found.setdefault(matched[1], (matched[3], matched[2], matched[4]))
        return found

    def __exit__(self, *_: object) -> None:
        self._process.terminate()
        self._process.wait(20)
        shutil.rmtree(self.home, ignore_errors=True)
