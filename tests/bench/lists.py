"""Searching all mail at once (`GET /api/v1/messages`): 100,000 messages, each kind of term.

In 1,000 mailboxes and, on a relay of its own, in one.  Each list, and each wait that ends at once,
is asked for over one kept connection with the administrator's token, three lists with a key that
has few of the messages.  Texts are of 110 words each; `order` stands in nearly all of them, a
number in a few.
"""

from __future__ import annotations

import http.client
import json
import tempfile
from pathlib import Path
from typing import Any
from urllib.parse import quote

import psycopg

from tests.bench.page import PATIENCE, ask, timed
from tests.eventually import eventually_sync
from tests.relay_process import RelayProcess

MESSAGES = 100_000
CALLS = 200
WORDS = (
    "order,invoice,reset,password,welcome,shipping,account,please,thanks,team,monthly,report,"
    "click,button,below,address,delivery,number,total,payment"
)

_FILL = """
    INSERT INTO relay.mailboxes (address, plan, owner_type, owner_id, expires_at)
    SELECT 'box' || n || '@relay.localhost', 'enterprise', 'api',
           CASE WHEN n % 500 = 7 THEN {owner} ELSE '00000000-0000-0000-0000-000000000000'::uuid END,
           now() + interval '1 day'
    FROM generate_series(0, {mailboxes} - 1) n;

    CREATE TEMPORARY TABLE made AS
    SELECT n, relay.uuidv7() AS id, b.id AS mailbox_id,
           (SELECT string_agg(
                (string_to_array({words}, ','))[1 + (random() * 19 + 0 * (n + g))::int]
                || CASE WHEN random() < 0.1 THEN (n * 37 % 9973)::text ELSE '' END, ' ')
            FROM generate_series(1, 110) g) AS body
    FROM generate_series(1, {messages}) n
    JOIN relay.mailboxes b ON b.address = 'box' || n % {mailboxes} || '@relay.localhost'
    ORDER BY n;

    INSERT INTO relay.messages (id, mailbox_id, reverse_path, raw_email, is_read)
    SELECT id, mailbox_id, 'app@shop.example',
           convert_to(CASE WHEN n % 9000 = 5 THEN repeat(body, 40) ELSE body END, 'UTF8'),
           n % 20000 = 3
    FROM made
    ORDER BY n;

    INSERT INTO relay.summaries (message_id, mailbox_id, from_address, subject, body_text,
                                 has_attachments, tags, details)
    SELECT id, mailbox_id, 'app@shop.example', 'Your order ' || n, body, n % 7000 = 1,
           CASE WHEN n % 30000 = 9 THEN '{{app,rare}}' ELSE '{{app}}' END::text[],
           '{{"headers":[["From","The Shop <app@shop.example>"]]}}'
    FROM made
    ORDER BY n;
    DELETE FROM relay.unsummarised;
    SELECT relay.fold_usage()
"""

QUERIES = {
    "newest": "",
    "a word in all": "order",
    "a word in none": "nowhere-to-be-found",
    "a word in few": "7123",
    "one letter": "o",
    "one letter, in none": "ø",
    "two letters": "zq",
    "two digits": "42",
    "two words": "order invoice",
    "a phrase": '"invoice order"',
    "a phrase in none": '"order nowhere"',
    "without a word": "order -7123",
    "from:": "from:shop.example",
    "from:, none": "from:nobody@",
    "to:, few": "to:box7@",
    "to:, none": "to:nobody@",
    "subject:": 'subject:"your order"',
    "subject:, none": "subject:nothing",
    "tag:": "tag:app",
    "tag:, few": "tag:rare",
    "tag:, none": "tag:nothing",
    "-tag:, none": "-tag:rare",
    "has:attachment, few": "has:attachment",
    "-has:attachment": "-has:attachment",
    "is:unread": "is:unread",
    "is:read, few": "is:read",
    "before:, none": "before:2020-01-01",
    "after:, none": "after:2099-01-01",
    "after:, all": "after:2020-01-01",
    "larger:, few": "larger:20k",
    "larger:, none": "larger:1g",
    "smaller:, none": "smaller:10",
    "two kinds": "tag:app larger:20k is:unread",
}
"""What is asked for."""

WAITS = {
    "wait, to none": "to=nobody%40nowhere.example",
    "wait, from none": "from=nobody%40nowhere.example",
    "wait, a word in none": "q=nowhere-to-be-found",
    "wait, a word in few": "q=7123",
}
"""What is waited for: what is there already is read first."""


def fill(url: str, mailboxes: int, owner: str) -> None:
    """Put everything there, in one transaction: or the relay would parse the messages meanwhile."""
    text = _FILL.format(
        mailboxes=mailboxes, messages=MESSAGES, words=f"'{WORDS}'", owner=f"'{owner}'::uuid"
    )
    with psycopg.connect(url, autocommit=True) as connection:
        with connection.transaction():
            for statement in filter(str.strip, text.split(";\n")):
                connection.execute(statement.encode())
        connection.execute("VACUUM ANALYZE")

        def without() -> int:
            row = connection.execute(
                "SELECT (SELECT max(seq) FROM relay.summaries)"
                " - (SELECT coalesce(max(last_seq), 0) FROM relay.common_chunks)"
            ).fetchone()
            assert row is not None
            return int(row[0])

        eventually_sync(
            without, "searches have their filters", until=lambda count: count < 64,
            within=PATIENCE, every=0.5,
        )  # fmt: skip


def measure(relay: RelayProcess, key: str) -> dict[str, dict[str, float]]:
    """Return p50 and p99 of each list, in milliseconds."""
    token = relay.run["admin_token"]
    connection = http.client.HTTPConnection(relay.run["http"].removeprefix("http://"))
    found = {}
    for name, query in QUERIES.items():
        path = f"/api/v1/messages?limit=50&q={quote(query)}"
        found[name] = timed(connection, [path] * CALLS, token)
    for name, query in WAITS.items():
        path = f"/api/v1/messages/wait?timeout=0&{query}"
        found[name] = timed(connection, [path] * CALLS, token)
    for name in ("newest", "a word in all"):
        _, following = ask(
            connection, f"/api/v1/messages?limit=200&q={quote(QUERIES[name])}", token
        )
        deep: list[str] = []
        while following is not None and len(deep) < 150:
            deep.append(following.replace("limit=200", "limit=50"))
            _, following = ask(connection, following, token)
        found[f"{name}, far down"] = timed(connection, deep[-1:] * CALLS, token)
    for name in ("newest", "a word in all", "a word in none"):
        path = f"/api/v1/messages?limit=50&q={quote(QUERIES[name])}"
        found[f"{name}, of few"] = timed(connection, [path] * CALLS, key)
    return found


def run(rounds: int) -> dict[str, Any]:
    """Measure on two relays, one after the other."""
    results: dict[str, dict[str, float]] = {}
    for mailboxes in (1000, 1):
        with tempfile.TemporaryDirectory(prefix="relay-bench-") as folder:
            env = {"RELAY_LOG__LEVEL": "warning"}
            with RelayProcess(Path(folder) / "var", env=env) as relay:
                with relay.http() as api:
                    made = json.loads(
                        api.post(
                            "/api/v1/keys", json={"owner": "few", "plan": "enterprise"}
                        ).content
                    )
                fill(relay.run["database_url"], mailboxes, made["id"])
                for name, figures in measure(relay, made["token"]).items():
                    results[f"{name} (in {mailboxes:,})"] = figures
    return {
        "name": "lists",
        "unit": "ms",
        "results": results,
        "ratios": {
            f"{name}, p99, ms": {"value": figures["p99 (ms)"], "at_most": 50.0}
            for name, figures in results.items()
        },
    }
