"""The operator's page on a full relay: every list call, the page's weight, its first paint.

10,000 mailboxes with 100,000 messages between them (20,000 in one), 100,000 finished outbound
messages, 10,000 accounts.  Each list is asked for its first page, for a page far down, and with
its filters, over one kept connection.  First paint is Chromium's own figure, where it is installed.
"""

from __future__ import annotations

import http.client
import json
import re
import shutil
import tempfile
import time
from pathlib import Path
from typing import Any
from urllib.parse import quote

import psycopg

from tests.relay_process import RelayProcess

MAILBOXES = 10_000
MESSAGES = 80_000
IN_ONE = 20_000
CALLS = 100

_FILL = """
    INSERT INTO relay.mailboxes (address, plan, owner_type, owner_id, expires_at)
    SELECT 'box' || n || '@relay.localhost', 'enterprise', 'api',
           '00000000-0000-0000-0000-000000000000', now() + interval '1 day'
    FROM generate_series(1, {mailboxes}) n;

    INSERT INTO relay.messages (mailbox_id, received_at, reverse_path, raw_email)
    SELECT b.id, now() - make_interval(secs => n), 'a@client.example',
           convert_to('Subject: letter ' || n || E'\\r\\n\\r\\n' || repeat('text ', 400), 'UTF8')
    FROM generate_series(1, {messages}) n
    JOIN relay.mailboxes b
      ON b.address = 'box' || (CASE WHEN n <= {in_one} THEN 1 ELSE n % {mailboxes} + 1 END)
                     || '@relay.localhost';

    INSERT INTO relay.summaries (message_id, mailbox_id, from_address, subject, body_text)
    SELECT m.id, m.mailbox_id, 'a@client.example', 'letter ' || m.id, repeat('text ', 400)
    FROM relay.messages m;
    DELETE FROM relay.unsummarised;

    INSERT INTO relay.accounts (email, login, status)
    SELECT 'user' || n || '@relay.localhost', 'user' || n, 'active'
    FROM generate_series(1, 10000) n;

    SELECT relay.send('a@relay.localhost', 'x' || n || '@d' || n % 100 || '.example', 's' || n, 't')
    FROM generate_series(1, {outbound}) n;
"""


def fill(url: str) -> None:
    """Put everything there."""
    text = _FILL.format(
        mailboxes=MAILBOXES, messages=MESSAGES + IN_ONE, in_one=IN_ONE, outbound=100_000
    )
    with psycopg.connect(url, autocommit=True) as connection:
        for statement in filter(str.strip, text.split(";\n")):
            connection.execute(statement)
        connection.execute("VACUUM ANALYZE")


def ask(connection: http.client.HTTPConnection, path: str, token: str) -> tuple[float, str | None]:
    """Return the seconds of a call, and the path of its next page."""
    began = time.perf_counter()
    connection.request("GET", path, headers={"Authorization": f"Bearer {token}"})
    answer = connection.getresponse()
    body = answer.read()
    seconds = time.perf_counter() - began
    assert answer.status == 200, (path, body)
    following = re.search(r"<([^>]*)>", answer.headers.get("Link", ""))
    return seconds, following[1] if following else None


def measure(relay: RelayProcess) -> dict[str, dict[str, float]]:
    """Return p50 and p99 of each list call, in milliseconds."""
    one = f"/api/v1/mailboxes/{quote('box1@relay.localhost', safe='')}/messages"
    other = f"/api/v1/mailboxes/{quote('box7@relay.localhost', safe='')}/messages"
    lists = {
        "mailboxes": "/api/v1/mailboxes?limit=50",
        "mailboxes, by a part of the address": "/api/v1/mailboxes?q=box77&limit=50",
        "mailboxes, no match": "/api/v1/mailboxes?q=nobody&limit=50",
        "messages of 20,000": f"{one}?limit=50",
        "messages of 9, searched": f"{other}?limit=50&q=nowhere",
        "outbound": "/api/v1/outbound?limit=50",
        "outbound, bounced": "/api/v1/outbound?status=bounced&limit=50",
        "outbound, queued": "/api/v1/outbound?status=queued&limit=50",
        "outbound, to one": "/api/v1/outbound?recipient=x5%40d5.example&limit=50",
        "outbound, to a domain": "/api/v1/outbound?domain=d5.example&limit=50",
        "outbound, high priority": "/api/v1/outbound?priority=high&limit=50",
        "accounts": "/api/v1/accounts?limit=50",
        "suppressions": "/api/v1/suppressions?limit=50",
        "keys": "/api/v1/keys?limit=50",
        "devices": "/api/v1/devices",
        "queue": "/api/v1/queue",
        "collector": "/api/v1/collector",
        "overview": "/api/v1/overview",
    }
    token = relay.run["admin_token"]
    connection = http.client.HTTPConnection(relay.run["http"].removeprefix("http://"))
    found = {}
    for name, path in lists.items():
        _, following = ask(connection, path, token)
        found[name] = timed(connection, [path] * CALLS, token)
        if following is None:
            continue
        deep: list[str] = []
        while following is not None and len(deep) < 150:
            deep.append(following)
            _, following = ask(connection, following.replace("limit=50", "limit=200"), token)
        found[f"{name}, far down"] = timed(connection, deep[-1:] * CALLS, token)
    return found


def timed(connection: http.client.HTTPConnection, paths: list[str], token: str) -> dict[str, float]:
    """Return p50 and p99 of these calls, in milliseconds."""
    seconds = sorted(ask(connection, path, token)[0] for path in paths)
    return {
        "p50 (ms)": seconds[len(seconds) // 2] * 1e3,
        "p99 (ms)": seconds[int(len(seconds) * 0.99)] * 1e3,
    }


def weight(relay: RelayProcess) -> int:
    """Return the bytes of the page and of all that it names."""
    connection = http.client.HTTPConnection(relay.run["http"].removeprefix("http://"))

    def load(path: str) -> bytes:
        connection.request("GET", path)
        return connection.getresponse().read()

    page = load("/")
    names = set(re.findall(rb'(?:src|href)="(/ui/[^"]+)"', page))
    return len(page) + sum(len(load(name.decode())) for name in names)


def first_paint(relay: RelayProcess, rounds: int) -> float | None:
    """Return the median first contentful paint in milliseconds, each in a fresh browser."""
    program = shutil.which("chromium")
    if program is None:
        return None
    from playwright.sync_api import sync_playwright

    paints = []
    with sync_playwright() as driver:
        for _ in range(max(3, rounds)):
            browser = driver.chromium.launch(
                executable_path=program, args=["--headless=new", "--no-sandbox", "--disable-gpu"]
            )
            page = browser.new_page()
            page.goto(relay.run["http"])
            page.wait_for_selector("#view h1")
            paints.append(
                page.evaluate("performance.getEntriesByName('first-contentful-paint')[0].startTime")
            )
            browser.close()
    return float(sorted(paints)[len(paints) // 2])


def run(rounds: int) -> dict[str, Any]:
    """Measure on one relay."""
    with tempfile.TemporaryDirectory(prefix="relay-bench-") as folder:
        env = {"RELAY_LOG__LEVEL": "warning"}
        with RelayProcess(Path(folder) / "var", env=env) as relay:
            fill(relay.run["database_url"])
            with relay.http() as api:
                while json.loads(api.get("/api/v1/queue").content)["queued"]:
                    time.sleep(0.5)
            time.sleep(2.0)
            lists = measure(relay)
            size = weight(relay)
            paint = first_paint(relay, rounds)
    worst = max(lists.values(), key=lambda one: one["p99 (ms)"])["p99 (ms)"]
    ratios = {
        "slowest list, p99, ms": {"value": worst, "at_most": 50.0},
        "the page, kB": {"value": size / 1e3, "at_most": 150.0},
    }
    if paint is not None:
        ratios["first paint, ms"] = {"value": paint, "at_most": 300.0}
    return {"name": "page", "unit": "ms", "results": lists, "ratios": ratios}
