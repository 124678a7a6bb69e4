"""The operator's page on a full relay: every list call, and how quick it looks.

10,000 mailboxes, one of them with 100,000 messages, the others with 9 each, 100,000 finished
outbound messages, 10,000 accounts.  Each list is asked for its first page, for a page far down, and
with its filters, and each call on a mailbox for the large one, over one kept connection.
In Chromium, where it is installed: its own figure of the first paint, the time from the
250 of a message until its row is in the page, and how many frames come in a second while the list
of the large mailbox is scrolled, its pages asked for as its end comes near: from its top, from row
50,000, and from its top again while 20 messages a second come to that mailbox.
"""

from __future__ import annotations

import http.client
import json
import re
import shutil
import smtplib
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager, nullcontext
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import psycopg

from tests.eventually import eventually_sync
from tests.relay_process import RelayProcess

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

MAILBOXES = 10_000
MESSAGES = 90_000
IN_ONE = 100_000
CALLS = 100
ROW = 36  # px
DEEP = 50_000  # rows
ARRIVING = 20  # a second
PATIENCE = 1800.0  # s, for what is filled in to be worked off

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
    SELECT relay.fold_usage();

    INSERT INTO relay.accounts (email, login, status)
    SELECT 'user' || n || '@relay.localhost', 'user' || n, 'active'
    FROM generate_series(1, 10000) n;

    SELECT relay.send('a@relay.localhost', 'x' || n || '@d' || n % 100 || '.example', 's' || n, 't')
    FROM generate_series(1, {outbound}) n;
"""


def fill(url: str) -> None:
    """Put everything there, in one transaction: or the relay would parse the messages meanwhile."""
    text = _FILL.format(
        mailboxes=MAILBOXES, messages=MESSAGES + IN_ONE, in_one=IN_ONE, outbound=100_000
    )
    with psycopg.connect(url, autocommit=True) as connection:
        with connection.transaction():
            for statement in filter(str.strip, text.split(";\n")):
                connection.execute(statement)
        connection.execute("VACUUM ANALYZE")


def wait_for_chunks(url: str) -> None:
    """Return once the large mailbox has the filters that its searches go by."""
    with psycopg.connect(url, autocommit=True) as connection:

        def without() -> int:
            row = connection.execute(
                "SELECT (SELECT max(seq) FROM relay.summaries)"
                " - (SELECT coalesce(max(last_seq), 0) FROM relay.search_chunks)"
            ).fetchone()
            assert row is not None
            return int(row[0])

        eventually_sync(
            without,
            "the large mailbox has its filters",
            until=lambda count: count < 100 + MESSAGES,
            within=PATIENCE,
            every=1.0,
        )


def ask(
    connection: http.client.HTTPConnection, path: str, token: str, method: str = "GET"
) -> tuple[float, str | None]:
    """Return the seconds of a call, and the path of its next page."""
    began = time.perf_counter()
    connection.request(method, path, headers={"Authorization": f"Bearer {token}"})
    answer = connection.getresponse()
    body = answer.read()
    seconds = time.perf_counter() - began
    assert answer.status in (200, 201, 204), (path, body)
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
        "messages of 100,000": f"{one}?limit=50",
        "messages, offset 99,900": f"{one}?limit=50&offset=99900",
        "messages, q finds nothing": f"{one}?limit=50&q=nowhere+to+be+found",
        "messages, q finds all": f"{one}?limit=50&q=letter",
        "wait, subject finds nothing": f"{one}/wait?timeout=0&subject=nowhere",
        "wait, from finds nothing": f"{one}/wait?timeout=0&from=nobody%40nowhere.example",
        "wait, after now": f"{one}/wait?timeout=0&after=2099-01-01T00:00:00Z",
        "wait, finds the oldest": f"{one}/wait?timeout=0",
        "mailbox of 100,000": one.removesuffix("/messages"),
        "quota": "/api/v1/quota",
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
    found["make and delete a mailbox"] = both(connection, token)
    for name, paths in single(connection, one, token).items():
        method = "DELETE" if name.startswith("delete") else "GET"
        found[name] = timed(connection, paths, token, method)
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


def single(connection: http.client.HTTPConnection, one: str, token: str) -> dict[str, list[str]]:
    """Return the paths of calls on single messages of the large mailbox, deletions first."""
    connection.request("GET", f"{one}?limit=200", headers={"Authorization": f"Bearer {token}"})
    ids = [each["id"] for each in json.loads(connection.getresponse().read())]
    return {
        "delete a message": [f"{one}/{each}" for each in ids[:CALLS]],
        "message": [f"{one}/{each}" for each in ids[CALLS:]],
        "raw": [f"{one}/{each}/raw" for each in ids[CALLS:]],
        "html": [f"{one}/{each}/html" for each in ids[CALLS:]],
    }


def both(connection: http.client.HTTPConnection, token: str) -> dict[str, float]:
    """Return p50 and p99 of making a mailbox and deleting it at once, in milliseconds."""
    seconds = []
    for number in range(CALLS):
        path = f"/api/v1/mailboxes?local_part=made{number}"
        made, _ = ask(connection, path, token, "POST")
        gone = f"/api/v1/mailboxes/made{number}%40relay.localhost?purge=true"
        seconds.append(max(made, ask(connection, gone, token, "DELETE")[0]))
    return spread(seconds)


def timed(
    connection: http.client.HTTPConnection, paths: list[str], token: str, method: str = "GET"
) -> dict[str, float]:
    """Return p50 and p99 of these calls, in milliseconds."""
    return spread([ask(connection, path, token, method)[0] for path in paths])


def spread(seconds: list[float]) -> dict[str, float]:
    """Return p50 and p99, in milliseconds."""
    seconds = sorted(seconds)
    return {
        "p50 (ms)": seconds[len(seconds) // 2] * 1e3,
        "p99 (ms)": seconds[int(len(seconds) * 0.99)] * 1e3,
    }


_SEEN = """word => new Promise((done) => {
    const look = () => document.querySelector("#messages")?.innerText.includes(word);
    const watch = new MutationObserver(() => {
        if (look()) { watch.disconnect(); done(Date.now()); }
    });
    watch.observe(document.body, { childList: true, subtree: true, characterData: true });
})"""

# 400 px a frame, for 3 s, while page after page is asked for: the frames that the browser made in a
# second, the longest of them in ms, and how far it came.
_SCROLL = """async (depth) => {
    const scroller = document.getElementById("messages");
    const frame = () => new Promise(requestAnimationFrame);
    while (depth && scroller.scrollTop < depth) { scroller.scrollTop += 1e5; await frame(); }
    for (let at = 0; at < 10; at += 1) await frame();
    const from = scroller.scrollTop;
    const began = await frame();
    let [at, frames, longest] = [began, 0, 0];
    for (; at - began < 3000; frames += 1) {
        scroller.scrollTop += 400;
        const next = await frame();
        [longest, at] = [Math.max(longest, next - at), next];
    }
    return [frames / (at - began) * 1000, longest, scroller.scrollTop - from];
}"""


def in_browser(relay: RelayProcess, rounds: int) -> dict[str, dict[str, float]]:
    """Return what is promised of the page in a browser; nothing where there is none."""
    program = shutil.which("chromium")
    if program is None:
        return {}
    from playwright.sync_api import sync_playwright

    with sync_playwright() as driver:

        def browser() -> Browser:
            return driver.chromium.launch(
                executable_path=program, args=["--headless=new", "--no-sandbox", "--disable-gpu"]
            )

        paints = []
        for _ in range(max(3, rounds)):
            with closing(browser()) as fresh:
                paints.append(first_paint(fresh.new_page(), relay))
        with closing(browser()) as fresh:
            page = fresh.new_page()
            seen = [shown_after(page, relay, number) for number in range(max(9, rounds))]
            large = quote("box1@relay.localhost", safe="")
            page.set_default_timeout(PATIENCE * 1e3)
            scrolled = {}
            for name, depth in (("", 0), (" from row 50,000", ROW * DEEP), (" as mail comes", 0)):
                page.goto("about:blank")
                page.goto(f"{relay.run['http']}/#/mail/{large}")
                page.locator("#address", has_text="box1@relay.localhost").wait_for()
                page.locator("#messages li", has_text="letter").first.wait_for()
                with arriving(relay) if "comes" in name else nullcontext():
                    scrolled[name] = page.evaluate(_SCROLL, depth)
                assert scrolled[name][2] > 50 * 400, name
    return {
        "first paint, ms": {"value": median(paints), "at_most": 300.0},
        "from the 250 to the row in the page, ms": {"value": median(seen), "at_most": 200.0},
        **{
            f"frames a second while 100,000 messages scroll{name}": {"value": frames}
            | ({} if "comes" in name else {"required": 50.0})
            for name, (frames, _, _) in scrolled.items()
        },
        **{
            f"the longest frame of those{name}, ms": {"value": longest}
            for name, (_, longest, _) in scrolled.items()
        },
        **{
            f"px scrolled in the 3 s{name}": {"value": far}
            for name, (_, _, far) in scrolled.items()
        },
    }


@contextmanager
def arriving(relay: RelayProcess) -> Iterator[None]:
    """Send `ARRIVING` messages a second to the large mailbox, until the block ends."""
    over = threading.Event()

    def send() -> None:
        with smtplib.SMTP(*relay.smtp) as client:
            while not over.wait(1 / ARRIVING):
                letter = "From: a@client.example\r\nSubject: letter that comes\r\n\r\ntext\r\n"
                client.sendmail("a@client.example", ["box1@relay.localhost"], letter)

    thread = threading.Thread(target=send)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def first_paint(page: Page, relay: RelayProcess) -> float:
    """Return when something was first seen of the page, in ms."""
    page.goto(relay.run["http"])
    page.wait_for_selector("#view h1")
    began = page.evaluate("performance.getEntriesByName('first-contentful-paint')[0].startTime")
    return float(began)


def shown_after(page: Page, relay: RelayProcess, number: int) -> float:
    """Return the ms from a message's 250 until its row is in the page; the first signs in."""
    if number == 0:
        page.goto(f"{relay.run['http']}/#/signin")
        page.get_by_label("Token").fill(relay.run["admin_token"])
        page.get_by_role("main").get_by_role("button", name="Sign in").click()
        page.get_by_role("button", name="Sign out").wait_for()
        page.goto(f"{relay.run['http']}/#/mail/{quote('box9@relay.localhost', safe='')}")
        page.locator("#stream", has_text="live").wait_for()
    word = f"seen{number}word"
    page.evaluate(f"word => {{ window.seen = ({_SEEN})(word); }}", word)
    letter = f"From: a@client.example\r\nSubject: {word}\r\n\r\ntext\r\n"
    with smtplib.SMTP(*relay.smtp) as client:
        client.sendmail("a@client.example", ["box9@relay.localhost"], letter)
        accepted = time.time()
    return float(page.evaluate("window.seen")) - accepted * 1e3


@contextmanager
def filled() -> Iterator[RelayProcess]:
    """A relay of its own with all of it, once nothing is left to be done."""
    with tempfile.TemporaryDirectory(prefix="relay-bench-") as folder:
        # What is sent is to end at once, and not as captured mail.
        env = {"RELAY_LOG__LEVEL": "warning", "RELAY_SMTP__CAPTURE": "off"}
        with RelayProcess(Path(folder) / "var", env=env) as relay:
            fill(relay.run["database_url"])
            with relay.http() as api:
                eventually_sync(
                    lambda: json.loads(api.get("/api/v1/queue").content)["queued"],
                    "the queue is empty",
                    until=lambda queued: not queued,
                    within=PATIENCE,
                    every=0.5,
                )
            wait_for_chunks(relay.run["database_url"])
            yield relay


def run(rounds: int) -> dict[str, Any]:
    """Measure on one relay."""
    with filled() as relay:
        lists = measure(relay)
        looks = in_browser(relay, rounds)
    worst = max(lists.values(), key=lambda one: one["p99 (ms)"])["p99 (ms)"]
    ratios = {
        "slowest list, p99, ms": {"value": worst, "at_most": 50.0},
    }
    return {"name": "page", "unit": "ms", "results": lists, "ratios": ratios | looks}
