"""The programs of docs/applications.md, run as they stand there against a relay."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.certificates import write
from tests.clients.senders import HERE, TIMEOUT, program
from tests.docs.pages import DOCS, Block, blocks
from tests.npm import node_modules
from tests.relay_process import RelayProcess

pytestmark = pytest.mark.clients

RUN = [one for one in blocks((DOCS / "applications.md").read_text()) if one.language]
"""Those that have a language are programs; the others are settings of frameworks."""


@pytest.fixture(scope="module")
def relay(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RelayProcess]:
    """A relay with a certificate."""
    folder = tmp_path_factory.mktemp("applications")
    cert, key = write(folder)
    env = {"RELAY_SMTP__TLS_CERT": cert, "RELAY_SMTP__TLS_KEY": key}
    with RelayProcess(folder / "data", env=env) as process:
        yield process


@pytest.fixture(scope="module")
def key(relay: RelayProcess) -> str:
    """A key that may send."""
    with relay.http() as http:
        body = {"owner": "shop", "scopes": ["send"], "from": ["@shop.example"]}
        return str(http.post("/api/v1/keys", json=body).raise_for_status().json()["token"])


def command(block: Block) -> list[str]:
    """What runs a program that comes on standard input."""
    if block.language == "sh":
        program(block.heading.split(",")[0])
        return ["sh", "-e"]
    if block.language == "python":
        return [sys.executable, "-"]
    assert block.language == "js", block
    return [program("node"), "-"]


def test_there_is_one_for_each_client() -> None:
    """Four that are captured and four that submit; what cannot be run here has no language."""
    assert len(RUN) == 8
    assert {block.language for block in RUN} == {"sh", "python", "js"}


@pytest.mark.parametrize("block", RUN, ids=lambda block: block.heading)
def test_a_program_of_the_page_runs_as_it_stands(
    relay: RelayProcess, key: str, block: Block, tmp_path: Path
) -> None:
    """Its mail is there, with the user name for a tag where it was captured on the way in."""
    submits = "STARTTLS" in block.heading
    person = f"{RUN.index(block)}@applications.example"
    text = block.text.replace("ada@customer.example", person)
    for port, entry in (("2525", "smtp"), ("2587", "submission")):
        text = text.replace(port, relay.run[entry].rpartition(":")[2])
    text = text.replace("var/tls/cert.pem", relay.env["RELAY_SMTP__TLS_CERT"])
    env = {**os.environ, "SHOP_KEY": key}
    if block.language == "js":
        env["NODE_PATH"] = str(node_modules(HERE))
    done = subprocess.run(
        command(block),
        input=text.encode(),
        env=env,
        cwd=tmp_path,
        capture_output=True,
        timeout=TIMEOUT,
        check=False,
    )
    assert done.returncode == 0, (done.stdout + done.stderr).decode()
    with relay.http() as http:
        query = {"to": person, "timeout": "20"}
        found = http.get("/api/v1/messages/wait", params=query).raise_for_status().json()
    assert found["subject"] == ("Invoice" if submits else "Welcome")
    assert found["mailbox"] == person
    assert ("shop" in found["tags"]) is not submits
