"""How the plug-in finds its relay, or starts one, and what it says where there is none."""

from __future__ import annotations

import contextlib
import json
import os
import pty
import re
import shutil
import socket
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from plugin_runs import PLUGIN, RUNS, SENDS, run_pytest, ways

from relay_client import Relay


def test_where_no_relay_is_that_is_said_once(
    inner: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And waited for once, not in each test: each has a line that leads there, and whoever wants no
    relay passes."""
    monkeypatch.setenv("RELAY_URL", "http://127.0.0.1:9")
    inner.makeconftest(
        """
import relay_client._exchange

relay_client._exchange.RETRY_TIMEOUT = 0.5

def pytest_fixture_setup(fixturedef):
    if fixturedef.argname == "relay":
        with open("looked", "a") as looks:
            looks.write("once ")
"""
    )
    wanting = "\n".join(f"def test_{n}(inbox): pass" for n in range(20))
    inner.makepyfile(f"{wanting}\ndef test_other(): pass")
    for parallel in ways(inner):
        (inner.path / "looked").unlink(missing_ok=True)
        result = run_pytest(inner, *parallel)
        result.assert_outcomes(errors=20, passed=1)
        looked = (inner.path / "looked").read_text().split()
        processes = int(parallel[-1]) if parallel else 1
        assert 1 <= len(looked) <= processes, "once in each process that has a test of these"
        title = " relay-client: why tests have no relay "
        errors, _, end = result.stdout.str().partition(title)
        short = "no relay (see relay-client at the end): the relay does not answer GET "
        assert len(re.findall(rf"^{re.escape(short)}\S+$", errors, re.MULTILINE)) == 20
        assert "Connection refused" not in errors
        without = " opens it. Without RELAY_URL a relay is started for the run."
        assert end.count("Connection refused") == end.count(without) == 1


def test_another_http_server_is_called_no_relay(
    inner: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By the test's own line, with its URL; its page is not shown."""
    page = b"HTTP/1.1 404 x\r\nConnection: close\r\n\r\n\n<!doctype html><p>nothing"
    inner.makepyfile("def test_it(inbox): pass")
    with socket.create_server(("127.0.0.1", 0)) as listener:
        url = f"http://127.0.0.1:{listener.getsockname()[1]}"

        def answer() -> None:
            peer, _ = listener.accept()
            with peer:
                peer.recv(65536)
                peer.sendall(page)

        thread = threading.Thread(target=answer, daemon=True)
        thread.start()
        monkeypatch.setenv("RELAY_URL", url)
        result = run_pytest(inner)
    result.assert_outcomes(errors=1)
    short = f"no relay (see relay-client at the end): no relay answers at {url}"
    why = f"404 unknown: no relay answered: it is a web page (GET {url}/api/v1/info)"
    assert {short, why} <= set(result.stdout.lines)


def test_a_relay_that_goes_away_is_waited_for_once(
    inner: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By the test that finds it gone; the next has it again if it is back."""
    inner.makeconftest(
        """
import os, socket, threading
import pytest
import relay_client._exchange
from relay_client import Inbox, Relay

relay_client._exchange.RETRY_TIMEOUT = 0.3
where = os.environ["RELAY_URL"].removeprefix("http://").split(":")

class Proxy:
    away, asked = False, 0

    def __init__(self):
        self.listener = socket.create_server(("127.0.0.1", 0))
        threading.Thread(target=self.accept, daemon=True).start()
        os.environ["RELAY_URL"] = f"http://127.0.0.1:{self.listener.getsockname()[1]}"

    def accept(self):
        while True:
            peer, _ = self.listener.accept()
            threading.Thread(target=self.attend, args=(peer,), daemon=True).start()

    def attend(self, peer):
        with peer, socket.create_connection(where) as relay:
            threading.Thread(target=self.answer, args=(relay, peer), daemon=True).start()
            while asked := peer.recv(65536):
                if self.away:
                    self.asked += asked.startswith(b"POST")
                    return
                relay.sendall(asked)

    def answer(self, relay, peer):
        while answered := relay.recv(65536):
            peer.sendall(answered)

PROXY = Proxy()

@pytest.fixture
def proxy():
    return PROXY
"""
    )
    inner.makepyfile(
        """
def test_goes(inbox, proxy): proxy.away = True
def test_first(inbox): pass
def test_second(inbox): pass
def test_third(inbox): pass
def test_back(proxy):
    assert proxy.asked == 1  # what may not be made twice is asked for once
    proxy.away = False
def test_fourth(inbox): pass
"""
    )
    result = run_pytest(inner)
    result.assert_outcomes(passed=3, errors=3)
    short = "no relay (see relay-client at the end): the relay does not answer POST "
    said = result.stdout.str().splitlines()  # where CI is set its summary has them whole, too
    assert sum(line.startswith(short) for line in said) == 3


def test_a_start_is_said(
    inner: pytest.Pytester, relay: Relay, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Once, by whoever starts it, with how long it took: on a terminal, and where none is."""
    monkeypatch.delenv("RELAY_URL")
    description = json.dumps({"http": relay.url, "admin_token": relay.token})
    inner.makepyfile("def test_other(): pass\n\ndef test_it(inbox): pass\n")
    starts = RUNS.replace("{}", description.replace('"', '\\"'))
    quiet = ("-q", "-p", "no:cacheprovider", *PLUGIN)
    for parallel in ways(inner):
        said = _on_terminal(*quiet, *parallel, "--relay-command", starts)
        assert re.search(
            r"^relay-client: starting a relay…[\s.]+relay-client: it is ready after \d+\.\d s$",
            said,
            re.MULTILINE,
        ), said
        assert said.count("relay-client: ") == 2
        assert re.search(r"^2 passed in", said, re.MULTILINE), said
    ends = "sh -c 'echo no disk; exit 3'"
    said = _on_terminal(*quiet, "--relay-command", ends)
    assert len(re.findall(r"^relay-client: it ended after \d+\.\d s$", said, re.MULTILINE)) == 1, (
        said
    )
    pattern = r"^the relay ended as it started; its log is (\S+):\nno disk$"
    (log,) = re.findall(pattern, said, re.MULTILINE)
    assert Path(log).read_text() == "no disk\n"
    for parallel in ways(inner):
        result = run_pytest(inner, *parallel, "--relay-command", starts)
        result.assert_outcomes(passed=2)
        said = (result.stderr if parallel else result.stdout).str()
        lines = re.findall(
            r"^relay-client: (starting a relay…|it is ready after .* s)$", said, re.M
        )
        assert len(lines) == 2, said


def _on_terminal(*arguments: str) -> str:
    """Run pytest on a terminal, and return what is there to be read."""
    ours, theirs = pty.openpty()
    with subprocess.Popen(
        [sys.executable, "-m", "pytest", *arguments],
        env={**os.environ, "NO_COLOR": "1", "COLUMNS": "100"},
        stdin=theirs, stdout=theirs, stderr=theirs,
    ) as process:  # fmt: skip
        os.close(theirs)
        said = b""
        # Linux ends a terminal that nobody has any more with an error.
        with contextlib.suppress(OSError):
            while part := os.read(ours, 4096):
                said += part
        os.close(ours)
        process.wait(60)
    return said.decode().replace("\r\n", "\n")


def test_it_works_where_no_relay_can_be_started(
    inner: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on Windows, whose Python has no fcntl: with a relay elsewhere, or one clear error."""
    inner.makepyfile(no_fcntl="import sys\nsys.modules['fcntl'] = None\n")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(inner.path), os.environ["PYTHONPATH"]]))
    inner.makepyfile("def test_it(inbox): pass\n")
    run_pytest(inner, "-p", "no_fcntl").assert_outcomes(passed=1)
    monkeypatch.delenv("RELAY_URL")
    result = run_pytest(inner, "-p", "no_fcntl")
    result.assert_outcomes(errors=1)
    result.stdout.fnmatch_lines(["*no relay can be started on this system: set RELAY_URL*"])


def test_a_relay_is_started_and_stopped(
    inner: pytest.Pytester, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """One for all workers, which ends with the run; a command that fails is shown."""
    monkeypatch.delenv("RELAY_URL")
    monkeypatch.delenv("RELAY_TOKEN")
    inner.makepyfile(
        SENDS
        + f"""
@pytest.mark.parametrize("number", range(4))
def test_sign_up(inbox, relay, smtp_server, number):
    with open({str(tmp_path / "seen")!r}, "a") as seen:
        print(relay.info().public_url, file=seen)
    put(smtp_server, inbox.address, "code 271828")
    assert inbox.wait().code == "271828"
"""
    )
    parallel = ways(inner)[-1]
    # With a temporary directory that goes before the relay does.
    inner.makeini("[pytest]\ntmp_path_retention_policy = failed")
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", *PLUGIN, *parallel]
    inner.run(*command).assert_outcomes(passed=4)
    (where,) = set((tmp_path / "seen").read_text().split())
    base = tmp_path / "base"
    kept = base / "relay" / "data"
    inner.run(*command, "--basetemp", base, "-k", "0").assert_outcomes(passed=1)
    assert (base / "relay" / "relay.log").exists()
    assert not kept.exists(), "a relay that has ended leaves its data"
    options = ("--basetemp", base, "-k", "0", "--relay-keep")
    result = inner.run(*command, *options)
    result.assert_outcomes(passed=1)
    elsewhere = kept.resolve()
    assert (elsewhere / "run").exists()
    assert not elsewhere.is_relative_to(base), "pytest removes what is there"
    result.stdout.fnmatch_lines(
        [
            "*what is kept*",
            "1 inbox, until its time is over:",
            "  *.py::test_sign_up[[]0[]]: *@relay.localhost",
            "the data *",
            f"  *relay* up --data-dir {elsewhere}",
        ],
        consecutive=True,
    )
    shutil.rmtree(elsewhere)
    kept.unlink()
    monkeypatch.setenv("RELAY_URL", where)
    monkeypatch.setattr("relay_client._exchange.RETRY_TIMEOUT", 0.1)
    with Relay(where) as gone, pytest.raises(Exception, match="does not answer"):
        gone.info()
    monkeypatch.delenv("RELAY_URL")
    result = run_pytest(inner, "--relay-command", "sh -c 'echo no disk; exit 3'", "-k", "0")
    result.assert_outcomes(errors=1)
    result.stdout.fnmatch_lines(["the relay ended as it started; its log is *:", "no disk"])


_DIES = """
import os, signal
from pathlib import Path
import pytest

def test_dies(inbox, tmp_path_factory):
    base = tmp_path_factory.getbasetemp()
    base = base if (base / "relay").exists() else base.parent
    os.kill(int((base / "relay/pid").read_text().split()[0]), signal.SIGKILL)
    with pytest.raises(Exception, match="does not answer"):
        inbox.wait(timeout=0)
    assert 0

@pytest.mark.parametrize("number", range(4))
def test_other(inbox, number): pass

def test_where(smtp_server): pass
"""


def test_a_relay_of_its_own_that_dies_is_not_waited_for(
    inner: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By no test, and no report: each says that it has ended, and why is said once."""
    monkeypatch.delenv("RELAY_URL")
    monkeypatch.delenv("RELAY_TOKEN")
    inner.makeconftest(
        "import relay_client._exchange\nrelay_client._exchange.RETRY_TIMEOUT = 100\n"
    )
    inner.makepyfile(_DIES)
    result = run_pytest(inner)
    result.assert_outcomes(failed=1, errors=5)
    errors, _, end = result.stdout.str().partition(" relay-client: why tests have no relay ")
    gist = "the relay that was started for these tests has ended"
    short = f"no relay (see relay-client at the end): {gist}"
    assert len(re.findall(f"^{re.escape(short)}$", errors, re.MULTILINE)) == 5
    assert f"what came cannot be read: {gist}; its log is " in errors
    assert end.count(f"{gist}; its log is ") == 1
    assert "why tests have no relay" not in end
