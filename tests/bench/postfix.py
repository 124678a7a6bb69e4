"""A Postfix of its own, for comparison: durable queue, then its `discard` delivery.

Runs from an installed Postfix, or from the tree that `.ci/run` unpacks beside smtp-source, under
a configuration and a queue in a temporary directory, on a free port of the loopback; no service is
installed or touched.  `available` says whether it can be run: Postfix insists on being started by
root.

Accepting costs it what it costs in production (one fsync a message before 250); delivery costs it
next to nothing, which is in its favour.
"""

from __future__ import annotations

import os
import pwd
import shutil
import socket
import subprocess
import tempfile
import time
from pathlib import Path

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
relay_domains = relay.localhost
relay_transport = discard
alias_maps =
smtpd_recipient_restrictions = permit_mynetworks, reject
smtpd_client_connection_count_limit = 0
default_process_limit = 100
maillog_file =
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
discard unix - - n - - discard
anvil unix - - n - 1 anvil
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


def available() -> bool:
    """Whether a Postfix can be run here."""
    return os.geteuid() == 0 and _tree() is not None


class Postfix:
    """A Postfix that listens on `port` until closed."""

    def __init__(self) -> None:
        """Start it, in a directory that its own account may enter."""
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
            )
        )
        (config / "master.cf").write_text(_MASTER.format(port=self.port))
        self.process = subprocess.Popen(
            [str(libraries / "sbin/master"), "-c", str(config), "-d"],
            env={"PATH": os.environ["PATH"], "LD_LIBRARY_PATH": str(libraries)},
            start_new_session=True,
        )
        deadline = time.monotonic() + 10
        while True:
            try:
                socket.create_connection(("127.0.0.1", self.port), timeout=5).close()
            except OSError:
                if self.process.poll() is not None or time.monotonic() > deadline:
                    raise RuntimeError("Postfix does not start") from None
                time.sleep(0.05)
            else:
                return

    def close(self) -> None:
        """End it and its children."""
        self.process.terminate()
        self.process.wait(10)
        shutil.rmtree(self._home)
