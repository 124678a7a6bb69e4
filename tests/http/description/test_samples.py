"""The programs that /openapi.json has for each call: pasted, they do what they say."""

from __future__ import annotations

import ast
import json
import os
import shlex
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import httpx
import pytest

from relay.http.description.examples import PATHS
from relay.http.description.samples import Request, samples
from tests.relay_process import RelayProcess

HOSTILE = 'it\'s "so" $HOME `id` \\n\n%s {0} é 😀'
RUNS = {
    "curl": lambda source: ["sh", "-c", source],
    "Python": lambda source: [sys.executable, "-c", source],
    "JavaScript": lambda source: ["node", "--input-type=module", "-e", source],
}


def run(label: str, source: str, token: str, place: Path) -> str:
    """Run a sample as somebody who set RELAY_TOKEN; return what it wrote."""
    if shutil.which("node" if label == "JavaScript" else "curl") is None:
        pytest.skip(f"what runs {label} is not installed")
    environment = {"PATH": os.environ["PATH"], "RELAY_TOKEN": token, "no_proxy": "*"}
    done = subprocess.run(
        RUNS[label](source), env=environment, cwd=place, capture_output=True, text=True,
        timeout=60, check=False,
    )  # fmt: skip
    assert done.returncode == 0, f"{source}\n{done.stdout}{done.stderr}"
    return done.stdout


@pytest.mark.parametrize("label", list(RUNS))
def test_samples_run_as_they_are(relay: RelayProcess, tmp_path: Path, label: str) -> None:
    """Each language makes, lists, changes, sends and deletes what the examples say, with no change
    but for the address that they speak of."""
    token = relay.run["admin_token"]
    described = httpx.get(f"{relay.run['http']}/openapi.json", trust_env=False).json()
    sources = {
        call["operationId"]: next(
            one["source"] for one in call["x-codeSamples"] if one["label"] == label
        )
        for methods in described["paths"].values()
        for call in methods.values()
    }
    box = relay.create_mailbox(ttl_minutes=5)

    def paste(name: str) -> str:
        return run(label, sources[name].replace(PATHS["address"], box), token, tmp_path)

    assert "relay.localhost" in paste("createMailbox")
    assert "queued" in paste("sendMessage")
    assert "482913" in paste("waitForMessage")
    assert "count" in paste("changeMessages")
    assert "relay_http_answers_total" in paste("getMetrics")
    paste("deleteMailbox")
    with relay.http() as api:
        assert api.get(f"/api/v1/mailboxes/{box}").status_code == 404


SOCKETS = {"NODE_OPTIONS": "--experimental-websocket"}
"""What has Node.js 20 know WebSockets, as 22 does unasked."""


@pytest.mark.parametrize("label", list(RUNS))
def test_a_socket_is_followed(relay: RelayProcess, tmp_path: Path, label: str) -> None:
    """In each language it tells of mail as that comes, and ends with the mailbox."""
    environment = {"PATH": os.environ["PATH"], "PYTHONUNBUFFERED": "1", "no_proxy": "*", **SOCKETS}
    environment["RELAY_TOKEN"] = relay.run["admin_token"]
    has = ["node", "-e", "process.exit(Number(typeof WebSocket === 'undefined'))"]
    if label == "JavaScript" and (
        not shutil.which("node") or subprocess.run(has, env=environment, check=False).returncode
    ):
        pytest.skip("no Node.js that has WebSockets is installed")
    described = httpx.get(f"{relay.run['http']}/openapi.json", trust_env=False).json()
    call = described["paths"]["/api/v1/mailboxes/{address}/ws"]["get"]
    source = next(one["source"] for one in call["x-codeSamples"] if one["label"] == label)
    box = relay.create_mailbox(ttl_minutes=5)
    command = RUNS[label](source.replace(PATHS["address"], box))
    written = tmp_path / "written"
    with (
        relay.http() as api,
        written.open("wb") as out,
        subprocess.Popen(command, env=environment, stdout=out, stderr=out) as follower,
    ):
        try:
            # It begins at the present: mail is sent until one comes later than that.
            for turn in range(200):
                if b"new_message" in written.read_bytes():
                    break
                assert follower.poll() is None, written.read_bytes()
                if turn % 5 == 0:
                    api.post(f"/api/v1/mailboxes/{box}/test-message").raise_for_status()
                time.sleep(0.1)
            assert b"new_message" in written.read_bytes()
            api.delete(f"/api/v1/mailboxes/{box}").raise_for_status()
            assert follower.wait(30) == 0, written.read_bytes()
        finally:
            follower.kill()


_PARSE = """
import { readFileSync } from "node:fs";
import { SourceTextModule } from "node:vm";

const broken = JSON.parse(readFileSync(0)).filter((source) => {
  try {
    new SourceTextModule(source);
  } catch (error) {
    return error instanceof SyntaxError;
  }
});
console.log(JSON.stringify(broken));
"""


def broken(label: str, sources: list[str]) -> list[str]:
    """Return those that their language does not take for programs; none of them is run."""
    if label == "Python":
        return [source for source in sources if not parses(source)]
    if label == "curl":
        calls = [
            subprocess.run(["sh", "-n", "-c", one], stderr=subprocess.DEVNULL, check=False)
            for one in sources
        ]
        return [one for one, call in zip(sources, calls, strict=True) if call.returncode]
    node = shutil.which("node")
    if node is None:
        pytest.skip("Node.js is not installed")
    done = subprocess.run(
        [node, "--experimental-vm-modules", "--input-type=module", "-e", _PARSE],
        input=json.dumps(sources), capture_output=True, text=True, timeout=60, check=True,
    )  # fmt: skip
    found: list[str] = json.loads(done.stdout)
    return found


def parses(source: str) -> bool:
    """Whether a text is a program of Python's."""
    try:
        ast.parse(source)
    except SyntaxError:
        return False
    return True


@pytest.mark.parametrize("label", list(RUNS))
def test_every_sample_is_a_program(relay: RelayProcess, label: str) -> None:
    """Those of all calls; and one that is none is seen among others."""
    described = httpx.get(f"{relay.run['http']}/openapi.json", trust_env=False).json()
    calls = [call for methods in described["paths"].values() for call in methods.values()]
    sources = [
        one["source"] for call in calls for one in call["x-codeSamples"] if one["label"] == label
    ]
    assert len(sources) == len(calls) > 90
    wrong = "print('"
    assert broken(label, [*sources, wrong]) == [wrong]


def test_whatever_an_example_holds_is_quoted() -> None:
    """Quotes, variables, escapes and line ends are data to a shell, to Python and to Node."""
    body: dict[str, Any] = {"text": HOSTILE, "none": None, "yes": True, "many": [1, HOSTILE]}
    request = Request("POST", "http://h/?q=%27", credential=True, body=body)
    written = {one["label"]: one["source"] for one in samples(request)}
    words = shlex.split(written["curl"].replace("\\\n", " ", 3))
    assert ast.literal_eval(words[-1].replace("null", "None").replace("true", "True")) == body
    (call,) = (
        node
        for node in ast.walk(ast.parse(written["Python"]))
        if isinstance(node, ast.Call) and ast.unparse(node.func) == "json.dumps"
    )
    assert ast.literal_eval(call.args[0]) == body
    node = shutil.which("node")
    if node is None:
        pytest.skip("Node.js is not installed")
    echo = "globalThis.fetch = (url, given) => { console.log(given.body); process.exit(); };\n"
    done = subprocess.run(
        [node, "--input-type=module", "-e", echo + written["JavaScript"]],
        capture_output=True, text=True, timeout=60, check=True,
    )  # fmt: skip
    assert ast.literal_eval(done.stdout.replace("null", "None").replace("true", "True")) == body


def test_a_credential_in_a_body_is_the_variable() -> None:
    """No token stands in a sample, not even where the body has one."""
    request = Request(
        "POST", "http://h/", credential=False, body={"token": "ra_the-token-that-opens-this"}
    )
    for one in samples(request):
        assert "RELAY_TOKEN" in one["source"]
        assert "ra_" not in one["source"]
