"""docs/http.md, asked of a running relay: its examples are answers, its figures hold."""

from __future__ import annotations

import json
import re
import smtplib
import time

import httpx

from tests.docs.pages import DOCS, blocks
from tests.relay_process import RelayProcess

PAGE = (DOCS / "http.md").read_text()
LETTER = b"From: Bob <bob@example.org>\r\nSubject: Your code\r\n\r\nIt is 482913.\r\n"


def test_the_example_of_a_problem_is_an_answer(relay: RelayProcess) -> None:
    """A misspelt parameter is answered with the very document that the page shows."""
    (shown,) = [block.text for block in blocks(PAGE) if block.language == "json"]
    box = relay.create_mailbox(ttl_minutes=5)
    with relay.http() as api:
        answer = api.get(f"/api/v1/mailboxes/{box}/messages/wait", params={"subjct": "x"})
    assert answer.headers["Content-Type"] == "application/problem+json"
    assert answer.json() == json.loads(shown)


def test_lists_go_on_by_their_link(relay: RelayProcess) -> None:
    """As the page says: 50 unless said, 200 at most, the next page in `Link`, none on the last."""
    path = "/api/v1/suppressions"
    with relay.http() as api:
        for number in range(201):
            api.post(path, json={"address": f"n{number}@docs.example"}).raise_for_status()
        first = api.get(path)
        assert len(first.json()) == 50
        link = re.fullmatch(r'<(/api/v1/\S+)>; rel="next"', first.headers["Link"])
        assert link is not None
        assert not {item["address"] for item in first.json()} & {
            item["address"] for item in api.get(link[1]).json()
        }
        large = api.get(path, params={"limit": 100_000})
        assert len(large.json()) == 200
        following = large.headers["Link"].partition(">")[0].lstrip("<")
        assert "Link" not in api.get(following).headers
        assert api.get("/api/v1/outbound", params={"cursor": "no id"}).status_code == 422
        for number in range(201):
            api.delete(f"{path}/n{number}@docs.example").raise_for_status()


def test_an_event_is_written_as_the_page_shows(relay: RelayProcess) -> None:
    """`retry`, then a comment or events, whose data are entries of the list of messages."""
    shown = next(block.text for block in blocks(PAGE) if "event: new_message" in block.text)
    box = relay.create_mailbox(ttl_minutes=5)
    with relay.http() as api, smtplib.SMTP(*relay.smtp, timeout=30) as session:
        session.sendmail("bob@example.org", box, LETTER)
        found = api.get(f"/api/v1/mailboxes/{box}/messages/wait", params={"timeout": 30}).json()
        before = "00000000-0000-7000-8000-000000000000"
        lines: list[str] = []
        until = time.monotonic() + 30
        with api.stream(
            "GET", f"/api/v1/mailboxes/{box}/events", headers={"Last-Event-ID": before}
        ) as stream:
            for line in stream.iter_lines():
                lines.append(line)
                if line.startswith("data: ") or time.monotonic() > until:
                    break
        entry = api.get(f"/api/v1/mailboxes/{box}/messages").json()[0]
    assert lines[0] == "retry: 1000"
    event = lines[lines.index("event: new_message") :]
    assert [line.partition(":")[0] for line in event] == ["event", "id", "data"]
    assert [line.partition(":")[0] for line in shown.splitlines()[:3]] == ["event", "id", "data"]
    assert event[1] == f"id: {found['id']}"
    assert json.loads(event[2].removeprefix("data: ")) == entry


def test_health_and_what_needs_no_credential(relay: RelayProcess) -> None:
    """The calls that the page lists as open are; `/healthz` and `/readyz` say what it says."""
    base = relay.run["http"]
    assert httpx.get(f"{base}/healthz", trust_env=False).text == '{"status":"ok"}'
    assert httpx.get(f"{base}/readyz", trust_env=False).json()["status"] == "ready"
    below = PAGE.partition("## Credentials")[2]
    listed = re.split(r"\sneed\s+none\.", below)[0].rpartition("|\n")[2]
    named = set(re.findall(r"`(?:POST )?(/[^`]*)`", listed))
    described = httpx.get(f"{base}/openapi.json", trust_env=False).json()["paths"]
    opened = {
        path
        for path, methods in described.items()
        for call in methods.values()
        if not call["security"]
    }
    # The page's sign-in; what Amazon signs, and what other upstreams do.
    elsewhere = {"/api/v1/session", "/api/v1/ingest/sns", "/api/v1/ingest/notifications"}
    # What the page is made of, and images, whose addresses are signed.
    part = ("/ui", "/api/v1/pictures/")
    assert {path for path in opened - elsewhere if not path.startswith(part)} == named
