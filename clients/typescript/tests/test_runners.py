"""Playwright with Chromium, and Vitest, with the package as it is installed: the README's tests.

Each runs one test that passes and one that fails, whose report has the mail that came.
"""

from __future__ import annotations

import base64
import json
import re
import socket
from pathlib import Path
from typing import Any

from conftest import Run
from readme import PROGRAMS
from relay_client import Relay
from tests.shop import serving_shop

_CONFIG = """
import { defineConfig } from "@playwright/test";

export default defineConfig({
  reporter: [["json", { outputFile: "report.json" }]],
  use: {
    baseURL: process.env.SHOP,
    launchOptions: { executablePath: process.env.CHROMIUM, args: ["--no-sandbox"] },
  },
});
"""
_FAILS = """
import { test } from "relay-client/playwright";

test.use({ inboxOptions: { ttl: 5, localPart: `failed-${Date.now()}` } });
test("fails", async ({ inbox, relay, smtpServer }) => {
  if (smtpServer.user !== "fails") throw new Error(smtpServer.user);
  const [from, to, html] = ["a@shop.example", inbox.address, "<b>Hi</b><script>1</script>"];
  await relay.send({ from, to, subject: "Hello", text: "code 271828 \\x1b[2J\\n::error::x", html });
  await inbox.wait();
  await relay.send({ from, to, subject: "#".repeat(2) + "vso[task.x]\\u202e", html });
  await inbox.waitMany(2);
  const own = await relay.inbox();
  await relay.send({ from, to: own.address, subject: "Own", html: "<p>HTML &amp; alone</p>" });
  await own.wait();
  await (await relay.inbox()).close();
  await inbox.wait({ subject: "Reset", timeout: 100 });
});
"""
_PLAYWRIGHT_IN_VAIN = """
import { test } from "relay-client/playwright";

test.describe.configure({ timeout: 2_500 });
test("in vain", async ({ inbox, relay }) => {
  const mail = { from: "a@shop.example", to: inbox.address, subject: "Welcome", text: "x" };
  await relay.send(mail);
  await inbox.wait();
  await inbox.wait({ subject: "Wellcome", timeout: 60_000 });
});
"""
_VITEST_FAILS = """
import { expect, test } from "relay-client/vitest";

test("fails", async ({ inbox, relay, smtpServer }) => {
  expect(smtpServer.url).toMatch(/^smtp:..fails:secret@/);
  const [from, to] = ["a@shop.example", inbox.address];
  const subject = "#".repeat(2) + "vso[task.x]";
  await relay.send({ from, to, subject, text: "code 271828\\n::error::x" });
  await inbox.wait();
  const own = await relay.inbox();
  await relay.send({ from, to: own.address, subject: "Own", text: "to its own" });
  await own.wait();
  await (await relay.inbox()).close();
  const headers = { Authorization: `Bearer ${process.env.RELAY_TOKEN}` };
  const path = `${process.env.RELAY_URL}/api/v1/mailboxes/${inbox.address}`;
  const { expires_at } = await (await fetch(path, { headers })).json();
  console.error(`lives for ${Math.round((Date.parse(expires_at) - Date.now()) / 60_000)} minutes`);
  await inbox.wait({ subject: "Reset", timeout: 100 });
});
"""
_VITEST_IN_VAIN = """
import { beforeEach, describe } from "vitest";
import { test } from "relay-client/vitest";

const rests = (time) => new Promise((done) => setTimeout(done, time));
test("in vain", { timeout: 3_000 }, async ({ inbox }) => { await inbox.wait(); });
test("late", { timeout: 2_000 }, async ({ inbox }) => {
  await rests(1_200);
  await inbox.wait();
});
describe("after a hook", () => {
  beforeEach(async ({ inbox }) => { if (inbox) await rests(1_500); });
  test("patient", { timeout: 2_000 }, ({ inbox }) => { throw new Error(`has ${inbox.timeout}`); });
  test("told", async ({ inbox }) => {
    inbox.timeout = 50;
    await inbox.wait();
  });
});
"""
_VITEST_AWAY = """
import { test as base } from "vitest";
import { fixtures } from "relay-client/vitest";

const away = base.extend({ ...fixtures, relayOptions: { url: process.env.AWAY } });
away("first", async ({ inbox }) => { throw inbox; });
away("second", async ({ inbox }) => { throw inbox; });
const closed = base.extend({ ...fixtures, relayOptions: { token: "rk_unknown" } });
closed("refused", async ({ inbox }) => { throw inbox; });
"""
_VITEST_AWAY_TOO = """
import { test as base } from "vitest";
import { fixtures } from "relay-client/vitest";

const away = base.extend({ ...fixtures, relayOptions: { url: process.env.AWAY } });
away("elsewhere", async ({ smtpServer }) => { throw smtpServer; });
"""
_PLAYWRIGHT_AWAY = """
import { test } from "relay-client/playwright";

test.use({ relayOptions: { url: "http://127.0.0.1:1" } });
test("first", async ({ inbox }) => { throw inbox; });
test("second", async ({ smtpServer }) => { throw smtpServer; });
test("third", async ({ inbox }) => { throw inbox; });
"""
_SHOP = """
import { Relay } from "relay-client";

export async function resetPassword(address) {
  const text = "Your code is 271828.";
  await new Relay().send({ from: "shop@relay.localhost", to: address, subject: "Reset", text });
}
"""


def test_playwright(run: Run, project: Path, chromium: str, relay: Relay) -> None:
    """Somebody signs up with a browser; of the test that fails, mail and its HTML are attached."""
    folder = project / "browser"
    folder.mkdir()
    (folder / "playwright.config.ts").write_text(_CONFIG)
    (folder / "sign-up.spec.ts").write_text(PROGRAMS["playwright"])
    (folder / "fails.spec.ts").write_text(_FAILS)
    (folder / "vain.spec.ts").write_text(_PLAYWRIGHT_IN_VAIN)
    with serving_shop(str(relay.info().smtp)) as shop:
        done = run(
            "node", project / "node_modules/@playwright/test/cli.js", "test", "--workers=1",
            folder=folder, fails=True, SHOP=shop, CHROMIUM=chromium,
        )  # fmt: skip
    report = json.loads((folder / "report.json").read_text())
    specs = {suite["file"]: suite["specs"][0] for suite in report["suites"]}
    results = {file: spec["tests"][0]["results"] for file, spec in specs.items()}
    (passed,) = results["sign-up.spec.ts"]
    assert passed["status"] == "passed", f"{passed}\n{done.stdout}{done.stderr}"
    assert passed["attachments"] == []
    (vain,) = results["vain.spec.ts"]
    assert vain["status"] == "failed", "and not ended by Playwright, which says no more"
    waited = re.search(r"waited ([0-9.]+) s for mail with 'Wellcome'", vain["error"]["message"])
    assert waited is not None, vain["error"]
    assert 0 < float(waited[1]) <= 1.5
    assert "; 1 other came:\n" in vain["error"]["message"]
    (failed,) = results["fails.spec.ts"]
    assert failed["status"] == "failed"
    said = "waited 0.1 s for mail with 'Reset' in the subject; 2 others came:"
    assert said in failed["error"]["message"]
    assert Path(failed["error"]["location"]["file"]).name == "fails.spec.ts"
    assert "relay-client/dist" not in failed["error"]["stack"]
    text, html, other, own, _, *more = failed["attachments"]
    assert re.fullmatch(r"mail to [a-z-]+@relay\.localhost", own["name"])
    assert re.search(
        r"from a@shop.example: Own\nHTML only: \.text is null\n\nHTML & alone$", _content(own)
    )
    assert {one["name"] for one in more} <= {"error-context"}, "which a newer Playwright adds"
    assert other["name"] == r"mail: \u0023#vso[task.x]\u202e"
    assert re.fullmatch(r"mail to failed-\d+@relay\.localhost", text["name"])
    assert "from a@shop.example: Hello\ncode: 271828" in _content(text)
    assert (html["name"], html["contentType"]) == ("mail: Hello", "text/html")
    # What is opened at the report's own origin is a frame, and the mail's script is in its value.
    page = _content(html)
    before, _, shown = page.partition(' srcdoc="')
    assert "default-src 'none'; img-src data:" in before
    assert before.endswith('background:#fff"\n')
    assert "<iframe sandbox style=" in before
    assert shown.split() == ["<b>Hi</b><script>1</script>", '"></iframe>']
    assert r"\u001b[2J" in _content(text)
    for said in (_content(text), failed["error"]["message"], done.stdout):
        assert "##vso[" not in said
        assert not re.search(r"^\s*::error::", said, re.MULTILINE)


def test_a_run_of_playwright_waits_once_for_a_relay_that_is_away(run: Run, project: Path) -> None:
    """In its first test, whose worker ends with it: the other workers know, and say the same."""
    folder = project / "browser-without"
    folder.mkdir()
    (folder / "playwright.config.ts").write_text(_CONFIG)
    (folder / "away.spec.ts").write_text(_PLAYWRIGHT_AWAY)
    run(
        "node", project / "node_modules/@playwright/test/cli.js", "test", "--workers=1",
        folder=folder, fails=True,
    )  # fmt: skip
    report = json.loads((folder / "report.json").read_text())
    results = [spec["tests"][0]["results"][0] for spec in report["suites"][0]["specs"]]
    assert [one["workerIndex"] for one in results] == [0, 1, 2]
    first, *others = [one["error"]["message"] for one in results]
    # The second would have asked something else.
    assert first.startswith(
        "Unreachable: the relay does not answer POST http://127.0.0.1:1/api/v1/m"
    )
    said = "RELAY_URL it is looked for at http://127.0.0.1:8025, where 'relay up' starts one"
    assert first.endswith(said)
    assert others == [first, first]


def _content(attachment: dict[str, Any]) -> str:
    return base64.b64decode(attachment["body"]).decode()


def test_vitest(run: Run, project: Path) -> None:
    """The README's test passes; beside the one that fails is what came."""
    folder = project / "unit"
    folder.mkdir()
    (folder / "shop.js").write_text(_SHOP)
    (folder / "reset.test.ts").write_text(PROGRAMS["vitest"])
    (folder / "fails.test.ts").write_text(_VITEST_FAILS)
    done = run(
        "node", project / "node_modules/vitest/vitest.mjs", "run", "--reporter=default",
        "--reporter=json", "--outputFile=report.json", folder=folder, fails=True,
    )  # fmt: skip
    report = json.loads((folder / "report.json").read_text())
    results = {Path(one["name"]).name: one["assertionResults"][0] for one in report["testResults"]}
    assert results["reset.test.ts"]["status"] == "passed", f"{done.stdout}{done.stderr}"
    assert results["fails.test.ts"]["status"] == "failed"
    (message,) = results["fails.test.ts"]["failureMessages"]
    assert "waited 0.1 s for mail with 'Reset' in the subject; 1 other came:" in message
    assert "from a@shop.example: \\u0023#vso[task.x]\ncode: 271828" in done.stderr
    assert re.search(r"Mail to \S+\n\n\S+ from a@shop.example: Own\n\nto its own\n", done.stderr)
    assert done.stderr.count("Mail to ") == 2
    assert not re.search(r"^\s*::error::|##vso\[", done.stdout + done.stderr, re.MULTILINE)
    assert "lives for 60 minutes" in done.stderr, "or as long if the run is killed"


def test_vitest_says_why_there_is_no_relay(run: Run, project: Path) -> None:
    """In its time: by the variables, without frames, and once; a vain wait, what it was for."""
    folder = project / "without"
    folder.mkdir()
    (folder / "away.test.ts").write_text(_VITEST_AWAY)
    (folder / "other.test.ts").write_text(_VITEST_AWAY_TOO)
    (folder / "vain.test.ts").write_text(_VITEST_IN_VAIN)
    with socket.socket() as nobody:
        nobody.bind(("127.0.0.1", 0))  # and does not listen: who connects is refused
        done = run(
            "node", project / "node_modules/vitest/vitest.mjs", "run", "--reporter=default",
            "--reporter=json", "--outputFile=report.json", "--no-file-parallelism",
            folder=folder, fails=True,
            AWAY=f"http://127.0.0.1:{nobody.getsockname()[1]}",
        )  # fmt: skip
    report = json.loads((folder / "report.json").read_text())
    said = {
        one["title"]: one["failureMessages"][0]
        for file in report["testResults"]
        for one in file["assertionResults"]
    }
    for name, least, most in (("in vain", 1.2, 2), ("late", 0.1, 0.4), ("told", 0.05, 0.05)):
        waited = re.search(r"waited ([0-9.]+) s for any mail; nothing came", said[name])
        assert waited is not None, said[name]
        assert least <= float(waited[1]) <= most
    assert said["patient"].startswith("Error: has 1000"), "its hook's time is not its own"
    assert said["first"].startswith("Unreachable: the relay does not answer"), said["first"]
    # That of another file would have asked something else.
    (asked,) = [one for one in ("/api/v1/mailboxes", "/api/v1/info") if one in said["first"]]
    assert asked
    assert "ECONNREFUSED" in said["first"]
    assert said["first"] == said["second"] == said["elsewhere"]
    assert said["refused"].startswith("Refused: 401 unauthenticated: ")
    for name in ("first", "refused"):
        assert "RELAY_URL (and RELAY_TOKEN) say where the relay is" in said[name]
        assert "/dist/" not in said[name]
    assert "exchange" not in done.stderr
