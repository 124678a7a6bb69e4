"""`relay mcp`, by the protocol's own client, against a running relay and a real sign-up site."""

from __future__ import annotations

import dataclasses
import json
import signal
import smtplib
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast
from urllib.parse import parse_qs, urlsplit

import httpx
import pytest
import trio
from mcp.client.client import Client
from mcp.client.stdio import StdioServerParameters, stdio_client
from mcp.shared.exceptions import MCPError
from trio.testing import MockClock

from relay.cli.agent.client import AgentClient
from relay.cli.agent.forms import MailResult
from relay.cli.agent.links import link_matches
from relay.cli.agent.tools import TOOLS
from relay.cli.mcp import make_server, perform
from relay.cli.visit import MAX_PAGE, HtmlDocument, NotOpened, visit
from tests.cli.command import environment
from tests.relay_process import RelayProcess

CASES = json.loads((Path(__file__).parents[2] / "clients" / "cases.json").read_text())
"""What both clients say in the same words."""
NAMES = [
    "create_inbox",
    "wait_for_mail",
    "latest_mail",
    "search_mail",
    "wait_for_any_mail",
    "read_mail",
    "tag_mail",
    "check_mail",
    "release_mail",
    "extract_code",
    "extract_link",
    "complete_signup",
    "send",
    "queue_state",
]


class Site(ThreadingHTTPServer):
    """A site that people sign up to: a redirect with a cookie, a form, and then a welcome."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Page)
        self.confirmed: list[dict[str, list[str]]] = []

    @property
    def base(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"


class _Page(BaseHTTPRequestHandler):
    server: Site

    def do_GET(self) -> None:
        url = urlsplit(self.path)
        if url.path == "/verify":
            self._answer(302, b"", Location=f"/form?{url.query}", Set_Cookie="visit=7; Path=/")
        elif url.path == "/form":
            token = parse_qs(url.query)["token"][0]
            code = '<input name="code" autocomplete="one-time-code">' if "x" in token else ""
            self._answer(
                200,
                f'<title>Confirm</title><form method="post" action="/confirm">'
                f'<input type="hidden" name="token" value="{token}">{code}'
                f'<button name="do" value="yes">Yes</button></form>'.encode(),
            )
        elif url.path == "/away":
            self._answer(302, b"", Location=parse_qs(url.query)["to"][0])
        elif url.path == "/login":
            self._answer(
                200,
                b'<form method="post"><input name="user"><input type="password" name="word"></form>'
                b'<form action="/search"><input name="q"></form>',
            )
        elif url.path == "/loop":
            self._answer(302, b"", Location="/loop")
        else:
            self._answer(404, b"no such page")

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"])).decode()
        ours = self.headers["Cookie"] == "visit=7" and self.headers["Origin"] == self.server.base
        if not ours:
            self._answer(403, b"forged")
            return
        self.server.confirmed.append(parse_qs(body))
        self._answer(200, "<title>Welcome</title><p>You are one of us, Zoë.</p>".encode())

    def _answer(self, status: int, body: bytes, **headers: str) -> None:
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name.replace("_", "-"), value)
        self.send_header("Content-Type", "text/html; charset=utf-8")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def site() -> Iterator[Site]:
    with Site() as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
        thread.start()
        yield server
        server.shutdown()
        thread.join()


class Agent:
    """A client that returns structured results, and raises a tool's error as AssertionError."""

    def __init__(self, client: Client) -> None:
        self.client = client

    async def __call__(self, tool: str, **arguments: Any) -> dict[str, Any]:
        result = await self.client.call_tool(tool, arguments)
        assert not result.is_error, result.content
        content: dict[str, Any] = result.structured_content
        return content

    async def refused(self, tool: str, **arguments: Any) -> str:
        result = await self.client.call_tool(tool, arguments)
        assert result.is_error, result
        (block,) = result.content
        return str(getattr(block, "text", ""))


@asynccontextmanager
async def agent(
    relay: RelayProcess, *arguments: str, mode: str = "auto", **env: str
) -> AsyncIterator[Agent]:
    server = StdioServerParameters(
        command=sys.executable,
        args=["-m", "relay", "mcp", "--data-dir", str(relay.data_dir), *arguments],
        env=environment(**env),
    )
    with trio.fail_after(60):
        async with Client(stdio_client(server), mode=mode) as client:
            yield Agent(client)


@asynccontextmanager
async def within(relay: RelayProcess, **options: Any) -> AsyncIterator[Agent]:
    """The same tools without a process between: what they do is all that the test is about."""
    with trio.fail_after(60):
        async with httpx.AsyncClient(trust_env=False) as client:
            agent = AgentClient(client, relay.data_dir, **options)
            async with Client(make_server(agent)) as tools:
                yield Agent(tools)
            await agent.delete_own_key()


def own_keys(relay: RelayProcess) -> list[dict[str, Any]]:
    """The keys that `relay mcp` made and that are there still."""
    with relay.http() as api:
        return [key for key in api.get("/api/v1/keys").json() if key["kind"] == "mcp"]


def deliver(relay: RelayProcess, address: str, subject: str, text: str) -> None:
    with smtplib.SMTP(*relay.smtp, timeout=30) as session:
        letter = f"From: Shop <shop@shop.example>\r\nSubject: {subject}\r\n\r\n{text}\r\n"
        session.sendmail("shop@shop.example", address, letter.encode())


@pytest.mark.parametrize("mode", ["auto", "legacy"])
async def test_every_tool_is_described(relay: RelayProcess, mode: str) -> None:
    """Old clients and new see all tools, described, with schemas."""
    async with agent(relay, mode=mode) as ask:
        found = (await ask.client.list_tools()).tools
        assert [tool.name for tool in found] == NAMES
        for tool in found:
            assert len(tool.description or "") > 60
            assert tool.input_schema["type"] == "object"
            assert tool.input_schema["additionalProperties"] is False
            assert (tool.output_schema or {})["type"] == "object"
        assert "never as instructions" in (ask.client.instructions or "")
        assert "address" in await ask("create_inbox")


async def test_mail_is_awaited_and_taken_apart(relay: RelayProcess) -> None:
    """A waiting call answers when the mail comes; code and link are found; then the latest."""
    async with agent(relay) as ask:
        inbox = (await ask("create_inbox", ttl_minutes=10))["address"]
        assert (await ask("latest_mail", address=inbox)) == {"found": False, "mail": None}
        assert "latest_mail" in await ask.refused("extract_code", address=inbox)

        got: dict[str, Any] = {}

        async def wait() -> None:
            got.update(await ask("wait_for_mail", address=inbox, timeout=30, subject="VERIFY"))
            got["at"] = trio.current_time()

        async with trio.open_nursery() as nursery:
            nursery.start_soon(wait)
            await trio.to_thread.run_sync(deliver, relay, inbox, "News", "nothing to see")
            await trio.to_thread.run_sync(
                deliver,
                relay,
                inbox,
                "Verify",
                "Your code is 482913.\r\nhttps://a.example/verify?t=1",
            )
            delivered = trio.current_time()
        assert got["at"] - delivered < 5
        assert got["mail"]["subject"] == "Verify"
        assert got["mail"]["code"] == "482913"
        assert got["mail"]["text"].startswith("Your code is 482913.")

        await trio.to_thread.run_sync(
            deliver, relay, inbox, "Later", "Hello again. https://b.example/"
        )
        later = await ask("wait_for_mail", address=inbox, timeout=20, after=got["mail"]["id"])
        assert later["mail"]["subject"] == "Later"
        latest = await ask("latest_mail", address=inbox)
        assert latest["mail"]["id"] == later["mail"]["id"]
        assert (await ask("latest_mail", address=inbox, subject="verify"))["mail"][
            "code"
        ] == "482913"
        code = await ask("extract_code", address=inbox)
        assert (code["code"], code["subject"]) == ("482913", "Verify")
        assert (await ask("extract_link", address=inbox))["link"] == "https://b.example/"
        link = await ask("extract_link", address=inbox, contains="a.example")
        assert link["link"] == "https://a.example/verify?t=1"
        nothing = await ask("wait_for_mail", address=inbox, timeout=0.1, **{"from": "nobody"})
        assert nothing == {"found": False, "mail": None}


async def test_a_code_is_awaited(relay: RelayProcess) -> None:
    """With a timeout, extract_code waits past mail without one."""
    async with within(relay) as ask:
        inbox = (await ask("create_inbox"))["address"]
        async with trio.open_nursery() as nursery:

            async def send() -> None:
                await trio.to_thread.run_sync(deliver, relay, inbox, "Welcome", "no number here")
                await trio.to_thread.run_sync(deliver, relay, inbox, "Code", "Your PIN: 7731")

            nursery.start_soon(send)
            assert (await ask("extract_code", address=inbox, timeout=30))["code"] == "7731"


async def test_a_sign_up_is_completed(relay: RelayProcess, site: Site) -> None:
    """The link is opened through its redirect, and the form that it leads to is confirmed."""
    async with within(relay, allow_private=True) as ask:
        inbox = (await ask("create_inbox"))["address"]
        text = f"Confirm: {site.base}/verify?token=abc\r\nNo more: {site.base}/unsubscribe"
        await trio.to_thread.run_sync(deliver, relay, inbox, "Please confirm", text)
        done = await ask("complete_signup", address=inbox, timeout=30)
        assert done["completed"], done
        assert done["opened"]["steps"] == ["GET 302", "GET 200", "POST 200"]
        assert (done["opened"]["title"], done["opened"]["form_submitted"]) == ("Welcome", True)
        assert done["opened"]["text"] == "You are one of us, Zoë."
        assert site.confirmed == [{"token": ["abc"], "do": ["yes"]}]

        text = f"Your code is 551203. {site.base}/verify?token=x1"
        await trio.to_thread.run_sync(deliver, relay, inbox, "With a code", text)
        done = await ask("complete_signup", address=inbox, timeout=30, subject="with a code")
        assert done["completed"], done
        assert site.confirmed[1] == {"token": ["x1"], "code": ["551203"], "do": ["yes"]}
        unopened = await ask("complete_signup", address=inbox, subject="code", open_link=False)
        assert (unopened["completed"], unopened["code"]) == (False, "551203")
        assert len(site.confirmed) == 2


async def test_a_link_into_the_private_network_is_not_opened(
    relay: RelayProcess, site: Site
) -> None:
    """Without --allow-private a link to this machine is reported and left alone."""
    async with within(relay) as ask:
        inbox = (await ask("create_inbox"))["address"]
        await trio.to_thread.run_sync(
            deliver, relay, inbox, "Confirm", f"{site.base}/verify?token=abc"
        )
        left = await ask("complete_signup", address=inbox, timeout=30)
        assert (left["completed"], left["opened"]) == (False, None)
        assert "--allow-private" in left["note"]
        assert left["link"] == f"{site.base}/verify?token=abc"
    assert site.confirmed == []


async def test_sending_and_the_queue(relay: RelayProcess) -> None:
    """send queues once under its key, queue_state tells what became of it; as administrator."""
    async with within(relay, admin=True) as ask:
        inbox = (await ask("create_inbox"))["address"]
        letter = {
            "from": "Ada <ada@relay.localhost>",
            "to": inbox,
            "subject": "Hi",
            "text": "there",
        }
        sent = await ask("send", **letter, idempotency_key=f"mcp-{inbox}")
        assert sent == await ask("send", **letter, idempotency_key=f"mcp-{inbox}")
        (message,) = sent["messages"]
        assert (await ask("wait_for_mail", address=inbox, timeout=30))["mail"]["subject"] == "Hi"
        state: dict[str, Any] = {}
        while state.get("status") != "sent":
            state = (await ask("queue_state", message_id=message["id"]))["message"]
        assert state["attempts"] == 1
        assert state["phases"]
        with relay.http() as http:  # as over HTTP, whom it spoke to and what was said
            shown = http.get(f"/api/v1/outbound/{message['id']}").json()
        for name in ("peer", "tls", "reply"):
            assert state[name] == shown[name]
        assert state["reply"].startswith("250 ")
        assert (await ask("queue_state"))["queue"]["last_hour"]["sent"] >= 1
        assert "to: " not in await ask.refused("send", **{"from": "a@b.example", "to": "nonsense"})


async def test_what_is_wrong_is_the_tools_error(relay: RelayProcess) -> None:
    """A misspelt argument, a foreign inbox and a bad value are told; an unknown tool is refused."""
    async with within(relay) as ask:
        assert "adress" in await ask.refused("latest_mail", adress="x@relay.localhost")
        assert "no such mailbox" in await ask.refused("latest_mail", address="x@relay.localhost")
        assert "ttl_minutes" in await ask.refused("create_inbox", ttl_minutes=0)
        with pytest.raises(MCPError, match="no tool 'fly'"):
            await ask.client.call_tool("fly", {})


async def test_a_key_limits_what_an_agent_may(relay: RelayProcess) -> None:
    """With an API key in RELAY_TOKEN the tools act as its holder, within its scope."""
    with relay.http() as api:
        body = {"owner": "agent", "scopes": ["read"], "plan": "pro"}
        token = api.post("/api/v1/keys", json=body).raise_for_status().json()["token"]
    theirs = relay.create_mailbox()
    async with agent(relay, RELAY_TOKEN=token) as ask:
        assert (await ask("create_inbox"))["plan"] == "pro"
        assert "no such mailbox" in await ask.refused("latest_mail", address=theirs)
        letter = {"from": "a@relay.localhost", "to": theirs, "subject": "x", "text": "y"}
        assert "send" in await ask.refused("send", **letter)


async def test_an_agent_reaches_its_own_inboxes_only(relay: RelayProcess) -> None:
    """By default the tools read what they made, send nothing, and leave no key behind."""
    theirs = relay.create_mailbox()
    await trio.to_thread.run_sync(deliver, relay, theirs, "Secret", "Your code is 482913.")
    async with agent(relay) as ask:
        inbox = (await ask("create_inbox"))["address"]
        with relay.http() as api:
            assert api.get(f"/api/v1/mailboxes/{inbox}").json()["owner_type"] == "mcp"
        for tool in ("wait_for_mail", "latest_mail", "extract_code", "complete_signup"):
            assert "no such mailbox" in await ask.refused(tool, address=theirs)
        letter = {"to": theirs, "subject": "x", "text": "y"}
        for sender in ("ceo@shop.example", theirs, inbox):
            assert "--allow-send" in await ask.refused("send", **letter, **{"from": sender})
        (key,) = own_keys(relay)
        assert (key["scopes"], key["from"]) == (["read"], ["own"])
    assert own_keys(relay) == []


async def test_all_inboxes_are_searched_awaited_read_and_tagged(relay: RelayProcess) -> None:
    """What an agent made is found at once by a query, and nothing of others'; tags come and go."""
    theirs = relay.create_mailbox()
    await trio.to_thread.run_sync(deliver, relay, theirs, "Secret", "Your code is 482913.")
    async with agent(relay) as ask:
        first, second = [(await ask("create_inbox"))["address"] for _ in range(2)]
        await trio.to_thread.run_sync(deliver, relay, first, "Verify", "Your code is 111222.")
        await trio.to_thread.run_sync(deliver, relay, second, "Welcome", "Hello there.")
        found = await ask("wait_for_any_mail", query="subject:welcome", timeout=30)
        assert (found["found"], found["mail"]["mailbox"]) == (True, second)
        assert found["mail"]["text"].startswith("Hello there.")
        assert (await ask("wait_for_any_mail", query="subject:verify", timeout=30))["mail"][
            "code"
        ] == "111222"
        vain = await ask("wait_for_any_mail", query="subject:secret", timeout=0.1)
        assert vain == {"found": False, "mail": None}
        listed = (await ask("search_mail"))["messages"]
        assert [entry["mailbox"] for entry in listed] == [second, first]
        (entry,) = (await ask("search_mail", query=f"to:{first}"))["messages"]
        this = {"address": first, "message_id": entry["id"]}
        assert (await ask("read_mail", **this))["mail"]["code"] == "111222"
        tagged = await ask("tag_mail", **this, add=["a", "b", "a"], is_read=False)
        assert (tagged["tags"], tagged["is_read"]) == (["a", "b"], False)
        assert (await ask("tag_mail", **this, remove=["a"], add=["c"]))["tags"] == ["b", "c"]
        (entry,) = (await ask("search_mail", query="tag:c is:unread"))["messages"]
        assert entry["mailbox"] == first
        assert "no operator" in await ask.refused("search_mail", query="colour:red")
        foreign = {"address": theirs, "message_id": entry["id"]}
        for tool in ("read_mail", "tag_mail"):
            assert "no such mailbox" in await ask.refused(tool, **foreign)
        refused = await ask.refused("release_mail", **this, to=["a@b.example"])
        assert "--allow-send" in refused


async def test_a_message_is_checked(relay: RelayProcess) -> None:
    """Its score, each verdict with its reason, and what is to be mended; it stays unread."""
    letter = "Subject: Sale\r\nContent-Type: text/html\r\n\r\n<img src='https://a.example/b.png'>"
    async with within(relay) as ask:
        inbox = (await ask("create_inbox"))["address"]

        def send() -> None:
            with smtplib.SMTP(*relay.smtp, timeout=30) as session:
                session.sendmail("shop@shop.example", inbox, f"{letter}\r\n")

        await trio.to_thread.run_sync(send)
        entry = (await ask("wait_for_mail", address=inbox, timeout=30))["mail"]
        found = await ask("check_mail", address=inbox, message_id=entry["id"])
        assert found["spf"]["result"] == "none"
        assert found["dkim"] == {
            "result": "none",
            "detail": "the message has no DKIM signature",
        }
        assert found["dmarc"]["result"] == "permerror"  # no From: nobody is asked
        assert 0 < found["score"] < 10
        mended = {finding["id"]: finding["severity"] for finding in found["findings"]}
        assert mended["no-text-part"] == "warning"
        assert "images-without-alt" in mended
        (listed,) = (await ask("search_mail", query=f"to:{inbox}"))["messages"]
        assert listed["is_read"] is False
        gone = {"address": inbox, "message_id": entry["id"][:-4] + "0000"}
        assert "no such message" in await ask.refused("check_mail", **gone)


async def test_what_was_captured_is_the_administrators_to_find_and_release(
    relay: RelayProcess,
) -> None:
    """With --admin captured mail is found and may be released, where the operator allows it."""
    person = "ada/1%2f?@mcp-customer.example"  # which no path may cut
    await trio.to_thread.run_sync(deliver, relay, person, "Captured", "For Ada.")
    async with within(relay) as ask:
        assert (await ask("search_mail", query=f"to:{person}"))["messages"] == []
    async with within(relay, admin=True) as ask:
        found = await ask("wait_for_any_mail", query=f"to:{person}", timeout=30)
        this = {"address": person, "message_id": found["mail"]["id"]}
        assert (await ask("read_mail", **this))["mail"]["subject"] == "Captured"
        assert (await ask("latest_mail", address=person))["mail"]["id"] == this["message_id"]
        refused = await ask.refused("release_mail", **this, to=["a@b.example"])
        assert "loop:" in refused, "this relay has no upstream that leads to others"


async def test_an_agent_that_may_send_sends_from_its_own_inboxes(relay: RelayProcess) -> None:
    """--allow-send is for mail from the addresses that the tools made; others are refused."""
    theirs = relay.create_mailbox()
    async with agent(relay, "--allow-send") as ask:
        inbox = (await ask("create_inbox"))["address"]
        letter = {"to": inbox, "subject": "Hi", "text": "there"}
        for sender in ("ceo@shop.example", theirs, f"x{inbox}", "admin@relay.localhost"):
            await ask.refused("send", **letter, **{"from": sender})
        sent = await ask("send", **letter, **{"from": f"Me <{inbox.upper()}>"})
        assert (await ask("wait_for_mail", address=inbox, timeout=30))["mail"]["subject"] == "Hi"
        (message,) = sent["messages"]
        state = await ask("queue_state", message_id=message["id"])
        assert state["message"]["subject"] == "Hi"
        assert "admin" in await ask.refused("queue_state")
    assert own_keys(relay) == []


async def test_a_key_that_was_taken_away_is_made_anew(relay: RelayProcess) -> None:
    """The tools go on when their key is no more, with nothing of what was its own."""
    async with within(relay) as ask:
        inbox = (await ask("create_inbox"))["address"]
        (key,) = own_keys(relay)
        with relay.http() as api:
            assert api.delete(f"/api/v1/keys/{key['id']}").status_code == 204
        assert "no such mailbox" in await ask.refused("latest_mail", address=inbox)
        assert "address" in await ask("create_inbox")
        assert [other["id"] for other in own_keys(relay)] != [key["id"]]
    assert own_keys(relay) == []


def test_a_signal_takes_the_key_away_too(relay: RelayProcess) -> None:
    """SIGTERM, with which clients end what they started, leaves no key behind."""
    opening = {"protocolVersion": "2025-06-18", "capabilities": {}}
    opening["clientInfo"] = {"name": "test", "version": "1"}
    messages = (
        {"id": 1, "method": "initialize", "params": opening},
        {"method": "notifications/initialized"},
        {"id": 2, "method": "tools/call", "params": {"name": "create_inbox", "arguments": {}}},
    )
    process = subprocess.Popen(
        [sys.executable, "-m", "relay", "mcp", "--data-dir", str(relay.data_dir)],
        env=environment(),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    with process:
        assert process.stdin is not None
        assert process.stdout is not None
        for message in messages:
            process.stdin.write(json.dumps({"jsonrpc": "2.0", **message}).encode() + b"\n")
            process.stdin.flush()
        while json.loads(process.stdout.readline()).get("id") != 2:
            pass
        assert len(own_keys(relay)) == 1
        process.terminate()
        assert process.wait(20) == -signal.SIGTERM
    assert own_keys(relay) == []


@pytest.mark.parametrize(
    ("wanted", "link", "fits"),
    [
        (None, "https://a.example/", True),
        ("shop.example", "https://shop.example/verify", True),
        ("shop.example", "https://Mail.Shop.Example./verify", True),
        (".shop.example", "https://mail.shop.example/", True),
        ("shop.example", "https://evil.example/shop.example", False),
        ("shop.example", "https://evil.example/?to=shop.example", False),
        ("shop.example", "https://notshop.example/", False),
        ("shop.example", "https://shop.example.evil.example/", False),
        ("shop.example", "https://shop.example@evil.example/", False),
        ("shop.example", "https://evil.example\\@shop.example:1x/", False),
        (".", "https://shop.example/", False),
        ("/Verify", "https://a.example/verify?token=1", True),
        ("verify", "https://a.example/verify?token=1", True),
        ("token=", "https://a.example/verify?token=1", True),
        ("verify", "https://verify.example/", False),
        ("/verify", "https://a.example/?x=verify", False),
        ("x", "https://[", False),
        ("HTTPS://Shop.example/Verify", "https://shop.example/verify?token=1", True),
        ("https://shop.example", "https://shop.example.evil.example/", False),
        ("https://shop.example/", "https://a.example/?next=https://shop.example/", False),
        ("x", "https://my_shop.example/x", True),
    ],
)
def test_a_link_is_chosen_by_its_host_or_by_its_path(
    wanted: str | None, link: str, fits: bool
) -> None:
    """A name with a dot is a host or its parent domain, one with a scheme a beginning; anything
    else is of path and query."""
    assert link_matches(wanted, link) == fits


@pytest.mark.parametrize("case", CASES["links"], ids=lambda case: case["subject"])
def test_a_link_is_chosen_as_the_clients_choose_it(case: dict[str, Any]) -> None:
    """Who moves a test to an agent, or back, means the same link."""
    for wanted in [*case["finds"], *case["misses"]]:
        first = next((link for link in case["links"] if link_matches(wanted, link)), None)
        found = case.get("found", next(iter(case["links"]), None))
        assert first == (None if wanted in case["misses"] else found), wanted


async def test_the_relay_may_come_and_go(tmp_path: Any) -> None:
    """Without a relay a tool says how to start one; once it runs, the same session works."""
    own = RelayProcess(tmp_path / "data")
    async with agent(own) as ask:
        assert "relay up" in await ask.refused("create_inbox")
        await trio.to_thread.run_sync(own.start)
        try:
            assert "address" in await ask("create_inbox")
        finally:
            assert await trio.to_thread.run_sync(own.stop) == 0
        assert "relay up" in await ask.refused("create_inbox")


async def test_a_waiting_call_shows_signs_of_life(autojump_clock: MockClock) -> None:
    """A client hears every few seconds that a call still waits, so its own deadline can move."""
    heard: list[float] = []

    class Session:
        async def report_progress(self, progress: float, message: str) -> None:
            heard.append(progress)

    async def slow(*_: object) -> MailResult:
        await trio.sleep(12)
        return MailResult(found=False, mail=None)

    tool = dataclasses.replace(TOOLS[1], run=slow)
    context: Any = SimpleNamespace(session=Session())
    result = await perform(
        cast("AgentClient", None), tool, {"address": "a@relay.localhost"}, context
    )
    assert result.structured_content == {"found": False, "mail": None}
    assert heard == [5, 10]


async def test_a_visit_confirms_nothing_else(site: Site) -> None:
    """A log-in page is not filled in; a missing page is a status; cookies stay with their host."""
    page = await visit(f"{site.base}/login", code="1234", allow_private=True)
    assert (page.status, page.submitted, page.steps) == (200, False, ("GET 200",))
    page = await visit(f"{site.base}/verify?token=x", allow_private=True)
    assert (page.submitted, page.title) == (False, "Confirm"), "the form wants a code"
    assert (await visit(f"{site.base}/nowhere", allow_private=True)).status == 404
    assert site.confirmed == []


@pytest.mark.parametrize("piece", ["<!--", "<", "<a ", "</a ", "<!a", "<?", "<![CDATA[", "&#x"])
def test_a_page_cannot_keep_the_agent_busy(piece: str) -> None:
    """A page made of beginnings is read in one pass: the work is bounded by its size."""
    document = HtmlDocument()
    document.feed(piece * (MAX_PAGE // len(piece)))
    assert document.confirmation("1") is None
    assert len(document.rawdata) <= MAX_PAGE


@pytest.mark.parametrize(
    ("path", "said"),
    [
        ("/loop", "on and on"),
        ("/away?to=file:///etc/passwd", "begin with"),
        ("/away?to=http://u:p@127.0.0.1/", "cannot hold"),
        ("/away?to=http://127.0.0.1:1/", "connected to"),
    ],
)
async def test_a_visit_that_leads_astray_ends(site: Site, path: str, said: str) -> None:
    """Endless redirects, other schemes and dead hosts end in one sentence."""
    with pytest.raises(NotOpened, match=said):
        await visit(site.base + path, allow_private=True)


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "[::1]", "169.254.169.254", "10.0.0.1"])
async def test_a_visit_leaves_private_addresses_alone(site: Site, host: str) -> None:
    """Nothing that is not on the public internet is connected to, by name or by number."""
    port = site.server_address[1]
    with pytest.raises(NotOpened, match="public"):
        await visit(f"http://{host}:{port}/verify?token=a")
