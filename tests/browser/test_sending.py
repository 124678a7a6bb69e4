"""What goes out, in a real browser: captured mail released, destinations with a shut gate, flush.

The relay under test sends to another relay, which captures what comes.
"""

from __future__ import annotations

import json
import re
import socket
import threading
from collections.abc import Iterator
from contextlib import closing
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest
from playwright.sync_api import expect

from tests.browser.conftest import TIMEOUT, Browse
from tests.browser.steps import deliver, mail, row, signed_in
from tests.eventually import eventually_sync
from tests.relay_process import RelayProcess

pytestmark = pytest.mark.browser
expect.set_options(timeout=TIMEOUT)


@pytest.fixture(scope="module")
def own(relay: RelayProcess, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RelayProcess]:
    """A relay whose mail goes to `relay`, and that releases mail to one domain."""
    host, port = relay.smtp
    env = {
        "RELAY_OUTBOUND__UPSTREAM": f"smtp://{host}:{port}",
        "RELAY_OUTBOUND__RELEASE_TO": json.dumps(["*@allowed.example"]),
        "RELAY_OUTBOUND__RETRY_UNIT": "1200",  # a gate stays shut for as long as it is looked at
        "RELAY_WEBHOOKS__ALLOW_PRIVATE": "true",
    }
    with RelayProcess(tmp_path_factory.mktemp("sending") / "data", env=env) as process:
        yield process


def test_a_captured_message_is_released_to_whom_the_setting_allows(
    own: RelayProcess, relay: RelayProcess, browse: Browse, axe: str
) -> None:
    """Byte for byte; whom it does not allow is refused in the window, which stays."""
    deliver(own, "ann@customer.example", mail("The offer", "for you"))
    with browse() as visit, relay.http() as elsewhere:
        page = signed_in(visit, own, "mail")
        row(page, "messages", "The offer").get_by_role("link").click()
        expect(page.get_by_role("button", name="Forward", exact=True)).to_be_visible()
        page.keyboard.press("f")
        asking = page.get_by_role("dialog", name="Forward this message")
        expect(asking.get_by_label("To")).to_be_focused()
        expect(asking).to_contain_text("RELEASE_TO allows: *@allowed.example")
        visit.check("release", axe)
        asking.get_by_label("To").fill("bob@other.example")
        asking.get_by_role("button", name="Forward").click()
        refused = asking.locator("label:has([name=to]) + [role=alert]")
        expect(refused).to_contain_text(re.compile("^To: .*RELEASE_TO"))
        expect(asking.get_by_role("alert")).to_have_count(1)
        expect(asking.get_by_label("To")).to_be_focused()
        expect(asking.get_by_label("To")).to_have_attribute("aria-invalid", "true")
        visit.check("release-refused", axe)
        asking.get_by_label("To").fill("bob@allowed.example, eve@allowed.example")
        page.keyboard.press("Escape")  # throws nothing away
        expect(asking).to_have_count(0)
        page.keyboard.press("f")
        asking.get_by_role("button", name="Forward").click()
        expect(asking).to_have_count(0)
        expect(page.locator("#toast")).to_contain_text("Queued")
        for to in ("bob", "eve"):
            query = {"to": f"{to}@allowed.example", "timeout": "15"}
            came = elsewhere.get("/api/v1/messages/wait", params=query).json()
            assert (came["subject"], came["body_text"].strip()) == ("The offer", "for you")
        visit.to("mail/sent")
        expect(page.locator("#messages li")).to_have_count(2)
        visit.check("sent", axe)
        # What was sent is told of beside its list: whom it went to, what was said, and its bytes.
        page.locator("#messages li a").first.click()
        expect(page).to_have_url(re.compile("#/mail/sent/[0-9a-f-]{36}$"))
        story = page.locator("#message")
        expect(story.locator("#story-title")).to_be_focused()
        host, port = relay.smtp
        expect(story.locator(".attempts")).to_contain_text(f"{host}[{host}]:{port} · without TLS")
        phases = story.locator(".phases li")
        expect(phases.filter(has_text="MAIL FROM")).to_contain_text("250")
        expect(phases.filter(has_text="RCPT TO:<")).to_contain_text("@allowed.example>")
        expect(phases.last).to_contain_text(re.compile(r"250 2\.\d+\.\d+ "))
        visit.check("sent-story", axe)
        if not story.locator("#story-raw").count():
            story.get_by_text("As it is sent").click()
        expect(story.locator("#story-raw")).to_contain_text("Subject: The offer")
        first = page.url
        page.keyboard.press("j")
        expect(page).not_to_have_url(first)
        expect(story.locator("#story-title")).to_be_focused()
        page.reload()
        expect(story.locator("#story-title")).to_be_visible()
        story.get_by_role("link", name="Close").click()
        expect(page).to_have_url(re.compile("#/mail/sent$"))
        expect(story).to_be_hidden()
        assert visit.errors == []


def test_an_answer_that_is_not_sent_is_kept_until_it_is(own: RelayProcess, browse: Browse) -> None:
    """By message: Escape throws nothing away, and another message's answer begins anew."""
    deliver(own, "drafts@customer.example", mail("The first", "one"), mail("The second", "two"))
    with browse() as visit:
        page = signed_in(visit, own, "mail/drafts@customer.example")
        answer = page.get_by_role("dialog", name="Reply")
        text = answer.get_by_label("Text")

        def reply(subject: str) -> None:
            row(page, "messages", subject).get_by_role("link").click()
            expect(page.locator("#message-subject")).to_have_text(subject)
            page.locator("#message-reply").click()

        reply("The first")
        expect(text).to_be_focused()
        page.keyboard.type("Half an answer")
        page.keyboard.press("Escape")
        expect(answer).to_have_count(0)
        reply("The second")
        expect(text).to_have_value("\n\n> two\n> ")
        answer.get_by_role("button", name="Cancel").click()
        reply("The first")
        expect(text).to_have_value("Half an answer\n\n> one\n> ")
        expect(text).to_be_focused()
        page.keyboard.type(", and the rest")  # where it was left
        expect(text).to_have_value(re.compile("^Half an answer, and the rest\n"))
        answer.get_by_label("To").fill("bob@allowed.example")
        answer.get_by_role("button", name="Send").click()
        expect(page.locator("#toast")).to_contain_text("Queued")
        page.locator("#message-reply").click()
        expect(text).to_have_value("\n\n> one\n> ")
        # Whoever signs in next finds nothing of it.
        text.fill("For nobody else")
        answer.get_by_role("button", name="Cancel").click()
        page.get_by_role("button", name="Sign out").click()
        expect(page.get_by_role("link", name="Sign in")).to_be_visible()
        page.goto(f"{own.run['http']}/#/signin")
        page.get_by_label("Token").fill(own.run["admin_token"])
        page.get_by_role("main").get_by_role("button", name="Sign in").click()
        expect(page.get_by_role("button", name="Sign out")).to_be_visible()
        visit.to("mail/drafts@customer.example")
        reply("The first")
        expect(text).to_have_value("\n\n> one\n> ")
        assert visit.errors == []


def test_a_destination_whose_gate_is_shut_says_why_and_is_tried_again_after_a_question(
    own: RelayProcess, browse: Browse, axe: str
) -> None:
    """Nobody answers at its upstream: the gate is named with its reason, and flush with a count."""
    with closing(socket.create_server(("127.0.0.1", 0))) as nobody:
        port = nobody.getsockname()[1]
    sender = "away@relay.localhost"
    with browse() as visit, own.http() as api:
        upstream = {"address": sender, "upstream": f"smtp://127.0.0.1:{port}"}
        api.post("/api/v1/senders", json=upstream).raise_for_status()
        letter = {"from": sender, "to": ["x@down.example"], "subject": "waits", "text": "t"}
        api.post("/api/v1/messages/send", json=letter).raise_for_status()
        letter |= {"from": "a@relay.localhost", "to": ["y@up.example"]}
        api.post("/api/v1/messages/send", json=letter).raise_for_status()
        page = signed_in(visit, own, "queue/overview")
        shut = page.locator("#destinations tbody tr").filter(has_text=f"127.0.0.1:{port}")
        says = re.compile(r"nobody answers: .* · connect: .*refused.* · since \d.* · until \d")
        expect(shut).to_contain_text(says)
        expect(shut).to_contain_text("down.example")
        visit.to("queue/queued?recipient=x%40down.example")
        row(page, "outbound", "waits").get_by_role("link").click()
        expect(page.locator("#story dl")).to_contain_text(says)
        visit.to("queue/overview")
        went = page.locator("#destinations tbody tr").filter(has_text="up.example")
        expect(went.locator(".went")).to_have_text("1")
        visit.check("gate-shut", axe)
        page.get_by_label("Deferred mail to").fill("down.example")
        page.get_by_label("By the route").fill("default")
        page.get_by_role("button", name="Try it now").click()
        expect(page.get_by_text("No deferred mail is meant.")).to_be_visible()
        page.get_by_label("By the route").fill(f"smtp://127.0.0.1:{port}")
        page.get_by_role("button", name="Try it now").click()
        asking = page.get_by_role("dialog", name="Try 1 message now?")
        expect(asking).to_contain_text(f"down.example. smtp://127.0.0.1:{port}")
        visit.check("flush", axe)
        asking.get_by_role("button", name="Cancel").click()
        page.get_by_role("button", name="Try it now").click()
        asking.get_by_role("button", name="Try now").click()
        expect(page.get_by_text("1 message due now.")).to_be_visible()
        eventually_sync(
            lambda: api.get("/api/v1/queue/flush?recipient=X@down.example").json()["count"],
            "it was tried, and waits again",
        )
        visit.to("queue/queued?recipient=x%40down.example")
        done = page.locator(".queue .top [role=status]")
        page.get_by_role("button", name="try deferred now").click()
        expect(asking).to_contain_text("x@down.example")
        asking.get_by_role("button", name="Try now").click()
        expect(done).to_have_text("1 message due now.")
        assert visit.errors == []


def test_messages_of_the_queue_are_chosen_for_what_may_be_done_with_each(
    own: RelayProcess, browse: Browse, axe: str
) -> None:
    """By their boxes or x; the question has the count, and what was changed meanwhile is not."""
    with browse() as visit, own.http() as api:
        letter = {"from": "a@relay.localhost", "text": "t", "send_at": "2099-01-01T00:00:00Z"}
        ids = []
        for name in ("one", "two", "three"):
            to = {"to": [f"{name}@later.example"], "subject": f"Letter {name}"}
            sent = api.post("/api/v1/messages/send", json=letter | to).raise_for_status()
            ids.append(sent.json()["messages"][0]["id"])
        page = signed_in(visit, own, "queue/queued?domain=later.example")
        chosen = page.get_by_role("group", name="Chosen messages")
        expect(row(page, "outbound", "Letter one")).to_be_visible()
        expect(chosen).to_be_hidden()
        page.get_by_role("checkbox", name="Select Letter one").check()
        row(page, "outbound", "Letter two").get_by_role("link").focus()
        page.keyboard.press("x")
        expect(chosen).to_contain_text("2 chosen")
        expect(chosen.get_by_role("button")).to_have_text(["hold 2", "cancel 2", "None"])
        visit.check("queue-chosen", axe)
        api.post(f"/api/v1/outbound/{ids[0]}/cancel").raise_for_status()
        page.keyboard.press("x")
        expect(chosen).to_contain_text("1 chosen")
        page.keyboard.press("x")
        chosen.get_by_role("button", name="hold").click()
        asking = page.get_by_role("dialog", name=re.compile("Hold . message"))
        asking.get_by_role("button", name=re.compile("^Hold")).click()
        expect(page.locator(".queue .top [role=status]")).to_have_text("1 message changed.")
        expect(chosen).to_be_hidden()
        states = [api.get(f"/api/v1/outbound/{one}").json()["status"] for one in ids]
        assert states == ["cancelled", "held", "queued"]
        assert visit.errors == []


class _Taker(BaseHTTPRequestHandler):
    """Takes every webhook."""

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        self.send_response(204)
        self.end_headers()

    def log_message(self, format: str, *args: object) -> None:
        pass


def test_webhooks_are_told_of_where_mail_leaves(own: RelayProcess, browse: Browse) -> None:
    """How many a second, beside what went out, once there are any."""
    with HTTPServer(("127.0.0.1", 0), _Taker) as server, browse() as visit, own.http() as api:
        serving = threading.Thread(target=server.serve_forever)
        serving.start()
        try:
            page = signed_in(visit, own)
            leaves = page.locator("#flow ol").last.locator("li").last
            expect(leaves).to_contain_text("failures")
            url = f"http://127.0.0.1:{server.server_port}/"
            made = api.post("/api/v1/webhooks", json={"url": url, "events": ["message.delivered"]})
            made.raise_for_status()
            letter = {
                "from": "a@relay.localhost",
                "to": ["x@elsewhere.example"],
                "subject": "s",
                "text": "t",
            }
            api.post("/api/v1/messages/send", json=letter).raise_for_status()
            expect(leaves).to_contain_text(re.compile(r"webhooks [\d.]+/(s|min)"))
            api.delete(f"/api/v1/webhooks/{made.json()['id']}").raise_for_status()
        finally:
            server.shutdown()
            serving.join()
        assert visit.errors == []


def test_what_is_wrong_with_an_actor_leads_to_its_lines(own: RelayProcess, browse: Browse) -> None:
    """A store that cannot be opened: a press of the warning, and the log says what it did."""
    kept, away = own.data_dir / "devices.db", own.data_dir / "devices.away"
    with browse() as visit, own.http() as api:
        page = signed_in(visit, own)
        kept.rename(away)
        kept.mkdir()
        try:
            api.post("/api/v1/supervision/device_store/restart").raise_for_status()
            page.locator(".attention a").filter(has_text="device_store is").click()
            expect(page).to_have_url(re.compile(r"#/logs\?actor=device_store$"))
            expect(page.get_by_label("Actor")).to_have_value("device_store")
            said = page.locator("#lines li")
            expect(said.filter(has_text="unable to open").first).to_be_visible()
            expect(
                said.filter(has_not=page.locator(".actor", has_text="device_store"))
            ).to_have_count(0)
        finally:
            kept.rmdir()
            away.rename(kept)
        assert visit.errors == []
