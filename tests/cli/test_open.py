"""`relay open` and the banner of `relay up`: a browser is signed in once, and nobody looks on."""

from __future__ import annotations

import json
import os
import pty
import re
import signal
import stat
import subprocess
import time
from pathlib import Path
from urllib.parse import urlsplit

import httpx

from relay.cli.open import banner
from tests.certificates import write
from tests.cli.command import RELAY, cli, environment
from tests.relay_process import RelayProcess


def sign_in(url: str) -> int:
    """Do what the page does with its link, and return the status."""
    parts = urlsplit(url)
    code = re.fullmatch(r"/signin\?code=([\w-]{20,})", parts.fragment)
    assert code is not None, url
    assert not parts.query, "what is before the # is sent and logged"
    with httpx.Client(base_url=f"{parts.scheme}://{parts.netloc}") as client:
        answer = client.post(
            "/api/v1/session", json={"code": code[1]}, headers={"Sec-Fetch-Site": "same-origin"}
        )
    return answer.status_code


def test_the_link_signs_in_once(relay: RelayProcess) -> None:
    """It is printed alone, and each is another; where there is no browser it is printed too.  How
    long it may be used is said beside it."""
    done = cli("open", "--print", "--data-dir", relay.data_dir)
    said = b"relay: The link works once, within 60 s.\n"
    assert (done.returncode, done.stderr) == (0, said)
    link = done.stdout.decode().strip()
    assert link.startswith(relay.run["http"])
    assert [sign_in(link), sign_in(link)] == [200, 401]
    nowhere = {"DISPLAY": "", "WAYLAND_DISPLAY": "", "BROWSER": ""}
    done = cli("open", "--data-dir", relay.data_dir, env=nowhere)
    assert done.returncode == 0
    assert b"No browser" in done.stderr
    assert done.stdout.decode().strip() != link
    assert sign_in(done.stdout.decode().strip()) == 200


def test_the_browser_is_not_told_the_code_where_others_see_it(
    relay: RelayProcess, tmp_path: Path
) -> None:
    """Its argument is a file that this user alone can read, and that leads to the link."""
    browser = tmp_path / "browser"
    browser.write_text(
        f'#!/bin/sh\nprintf %s "$*" >{tmp_path}/part\nmv {tmp_path}/part {tmp_path}/told\n'
    )
    browser.chmod(0o700)
    done = cli("open", "--data-dir", relay.data_dir, env={"BROWSER": f"{browser} %s"})
    assert (done.returncode, done.stdout) == (0, b"")
    told = (tmp_path / "told").read_text()
    assert told.startswith("file:///")
    assert "code=" not in told
    file = Path(urlsplit(told).path)
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    found = re.search(r'url=(\S+?)"', file.read_text())
    assert found is not None
    assert sign_in(found[1]) == 200


def test_the_banner_says_when_a_proxy_turns_capture_off(tmp_path: Path) -> None:
    """Where it would be on without one, and nobody has said what is wanted."""
    proxied = {"smtp.trusted_proxies": ["127.0.0.1"]}
    for smtp, chosen, told in (
        ("127.0.0.1:2525", proxied, True),
        ("127.0.0.1:2525", {}, False),
        ("127.0.0.1:2525", proxied | {"smtp.capture": "off"}, False),
        ("192.0.2.1:2525", proxied, False),
    ):
        said = banner({"smtp": smtp, "bound": {"smtp": [smtp]}, "settings": chosen}, tmp_path)
        assert ("mail for other domains is refused: behind the proxies" in said) is told


def test_a_relay_on_a_terminal_says_where_it_is(tmp_path: Path) -> None:
    """Addresses, a link that signs in, and what to try; into a pipe nothing but the log."""
    ours, theirs = pty.openpty()
    node = RelayProcess(tmp_path / "node")
    cert, key = write(tmp_path)
    ports = {
        "RELAY_SMTP__TLS_CERT": str(cert),
        "RELAY_SMTP__TLS_KEY": str(key),
        "RELAY_SMTP__LMTP": str(tmp_path / "lmtp"),
        "RELAY_SUBMISSION__TLS_BIND": "127.0.0.1:0",
        "RELAY_POP3__BIND": "127.0.0.1:0",
        "RELAY_POP3__TLS_BIND": "127.0.0.1:0",
    }
    process = subprocess.Popen(
        [*RELAY, "up", "--data-dir", node.data_dir],
        env=environment(**node.env | ports),
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
    )
    os.close(theirs)
    written, deadline = "", time.monotonic() + 60
    try:
        while "mailbox create" not in written:  # the last line
            assert time.monotonic() < deadline, written
            written += os.read(ours, 65536).decode("utf-8", "replace")
        run = json.loads(node.run_file.read_text())
        assert "Relay is ready." in written
        assert f"{run['smtp']} (SMTP)" in written
        assert f"{run['lmtp']} (LMTP" in written
        assert f"{run['submission_tls']} (likewise, with TLS)" in written
        assert f"{run['pop3']} (POP3" in written
        assert f"{run['pop3_tls']} (likewise, with TLS)" in written
        headers = {"Authorization": f"Bearer {run['admin_token']}"}
        told = httpx.get(f"{run['http']}/api/v1/info", headers=headers).json()
        names = ("smtp", "lmtp", "submission", "submission_tls", "pop3", "pop3_tls")
        assert {name: told[name] for name in names} == {name: run[name] for name in names}
        assert told["starttls"]
        assert f"relay open --data-dir {node.data_dir}" in written
        assert f"relay messages list --data-dir {node.data_dir}" in written
        assert "any address is captured, and nothing leaves" in written
        assert "key create --owner me --scope send --data-dir" in written
        found = re.search(rf"({re.escape(run['http'])}/#\S+)", written)
        assert found is not None, written
        assert [sign_in(found[1]), sign_in(found[1])] == [200, 401]
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(30)
        os.close(ours)
    assert process.returncode == 0
