"""A Postfix of its own, for comparison: durable queue, then its `discard` delivery, or SMTP.

Runs from an installed Postfix, or from the tree that `.ci/run` unpacks beside smtp-source, under
a configuration and a queue in a temporary directory, on a free port of the loopback; no service is
installed or touched.  `available` says whether it can be run: Postfix insists on being started by
root.

Accepting costs it what it costs in production (one fsync a message before 250); delivery costs it
next to nothing, which is in its favour.

With `deliver_to`, what it accepts waits in its incoming queue, as its queue manager is not there
until `release`, and then goes to that port of the loopback by its own SMTP client.  Nothing of its
defaults holds that back: the queue manager may have all of it in memory, begins with `DELIVERIES`
at once to the one destination instead of 5, reuses connections, and asks no DNS.
"""

from __future__ import annotations

import os
import pwd
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from pathlib import Path

DELIVERIES = 100
"""At once; it is a little slower with 50, and by an eighth with 20."""

_MAIN = """
compatibility_level = 3.6
queue_directory = {home}/queue
data_directory = {home}/data
daemon_directory = {daemons}
shlib_directory = {libraries}
command_directory = {commands}
mail_owner = {owner}
setgid_group = {group}
default_privs = nobody
import_environment = MAIL_CONFIG LD_LIBRARY_PATH={libraries}
inet_interfaces = 127.0.0.1
inet_protocols = ipv4
myhostname = bench.example
mydestination =
mynetworks = 127.0.0.0/8
relay_domains = {domains}
relay_transport = {transport}
initial_destination_concurrency = {deliveries}
default_destination_concurrency_limit = {deliveries}
qmgr_message_active_limit = 200000
qmgr_message_recipient_limit = 200000
smtp_dns_support_level = disabled
smtp_connection_reuse_time_limit = 3600s
hash_queue_names = saved
in_flow_delay = 0
alias_maps =
smtpd_recipient_restrictions = permit_mynetworks, reject
smtpd_client_connection_count_limit = 0
default_process_limit = 100
maillog_file =
smtpd_milters = {milter}
{tls}"""

_TLS = """smtpd_tls_security_level = may
smtpd_tls_chain_files = {chain}
smtpd_tls_received_header = yes
"""

_MASTER = """
127.0.0.1:{port} inet n - n - - smtpd
cleanup unix n - n - 0 cleanup
{hold}qmgr unix n - n 300 1 qmgr
rewrite unix - - n - - trivial-rewrite
bounce unix - - n - 0 bounce
defer unix - - n - 0 bounce
trace unix - - n - 0 bounce
proxymap unix - - n - - proxymap
discard unix - - n - - discard
smtp unix - - n - - smtp
lmtp unix - - n - - lmtp
scache unix - - n - 1 scache
retry unix - - n - - error
anvil unix - - n - 1 anvil
tlsmgr unix - - n 1000? 1 tlsmgr
"""

_PUBLIC = ("public", "maildrop")
_PRIVATE = (
    *("active", "bounce", "corrupt", "defer", "deferred", "flush", "hold", "incoming", "private"),
    *("saved", "trace"),
)


def _tree() -> Path | None:
    """Where `usr/lib/postfix/sbin/master` is."""
    source = shutil.which("smtp-source")
    unpacked = [Path(source).resolve().parent.parent / "postfix"] if source else []
    for tree in (Path("/"), *unpacked):
        if (tree / "usr/lib/postfix/sbin/master").exists():
            return tree
    return None


def _transport(deliver_to: int | str | None) -> str:
    if isinstance(deliver_to, str):
        return f"lmtp:unix:{deliver_to}"
    return "discard" if deliver_to is None else f"smtp:[127.0.0.1]:{deliver_to}"


def available() -> bool:
    """Whether a Postfix can be run here."""
    return os.geteuid() == 0 and _tree() is not None


class Postfix:
    """A Postfix that listens on `port` until closed."""

    def __init__(
        self,
        deliver_to: int | str | None = None,
        milter: str = "",
        *,
        domains: str = "relay.localhost, example.com",
        chain: Path | None = None,
    ) -> None:
        """Start it, in a directory that its own account may enter.

        `deliver_to`: a port that takes all its mail once it is released, or the path of a Unix
        socket that takes it by LMTP; None: it is discarded.  `milter`: where one is, if any;
        `domains`, with commas: whose mail it takes; `chain`: the file of a key and its certificates
        with which STARTTLS is offered.
        """
        self._home = home = Path(tempfile.mkdtemp(prefix="relay-bench-"))
        home.chmod(0o755)
        tree = _tree()
        assert tree is not None
        # Not its usual accounts, which only its package makes.  Two that own nothing here will do.
        owner = pwd.getpwnam("daemon")
        with socket.create_server(("127.0.0.1", 0)) as listener:
            self.port: int = listener.getsockname()[1]
        config, libraries = home / "config", tree / "usr/lib/postfix"
        for directory in (config, home / "data", home / "queue", home / "queue/pid"):
            directory.mkdir(parents=True)
        for name in (*_PRIVATE, *_PUBLIC):
            (home / "queue" / name).mkdir(mode=0o700)
            os.chown(home / "queue" / name, owner.pw_uid, 0)
        os.chown(home / "data", owner.pw_uid, 0)
        (config / "main.cf").write_text(
            _MAIN.format(
                home=home,
                daemons=libraries / "sbin",
                libraries=libraries,
                commands=tree / "usr/sbin",
                owner=owner.pw_name,
                group="uucp",
                transport=_transport(deliver_to),
                deliveries=DELIVERIES,
                milter=milter,
                domains=domains,
                tls="" if chain is None else _TLS.format(chain=chain),
            )
        )
        self._services = config / "master.cf"
        hold = "" if deliver_to is None else "#"
        self._services.write_text(_MASTER.format(port=self.port, hold=hold))
        self.process = subprocess.Popen(
            [str(libraries / "sbin/master"), "-c", str(config), "-d"],
            env={"PATH": os.environ["PATH"], "LD_LIBRARY_PATH": str(libraries)},
            start_new_session=True,
        )
        deadline = time.monotonic() + 10
        while True:
            try:
                # Until it greets: it listens before it has set up its signals, and the one of
                # `release` would end it.
                with socket.create_connection(("127.0.0.1", self.port), timeout=5) as probe:
                    if probe.recv(3) == b"220":
                        return
            except OSError:
                pass
            if self.process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError("Postfix does not start")
            time.sleep(0.05)

    def release(self) -> None:
        """Let it deliver what waits."""
        self._services.write_text(_MASTER.format(port=self.port, hold=""))
        self.process.send_signal(signal.SIGHUP)

    def empty(self) -> bool:
        """Whether nothing is in its queue."""
        # In the order in which a message goes through them, so that none is overlooked.
        for name in ("incoming", "active", "deferred"):
            with os.scandir(self._home / "queue" / name) as found:
                if next(found, None) is not None:
                    return False
        return True

    def waiting(self) -> int:
        """How many messages are in its queue."""
        queue = self._home / "queue"
        return sum(len(os.listdir(queue / name)) for name in ("incoming", "active", "deferred"))

    def held(self) -> list[bytes]:
        """The files of its incoming queue: each the envelope and the lines of a message."""
        incoming = self._home / "queue/incoming"
        return [(incoming / name).read_bytes() for name in os.listdir(incoming)]

    def holds(self, text: bytes) -> bool:
        """Whether a text is in each message of its queue."""
        return all(text in message for message in self.held())

    def close(self) -> None:
        """End it and its children."""
        self.process.terminate()
        self.process.wait(10)
        shutil.rmtree(self._home)
