"""What is personal or secret appears nowhere but in its owner's own answers."""

import http.server
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import psycopg

from tests.eventually import eventually_sync
from tests.relay_process import RelayProcess

CANARY = "canary"
PERSON = "canary.person@canary.example"
PASSWORD = "canary-password"


@contextmanager
def receiving(status: int) -> Iterator[tuple[str, list[bytes]]]:
    """Run a receiver of webhooks; yields its URL, which holds a token, and what came."""
    got: list[bytes] = []

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            got.append(self.rfile.read(int(self.headers["Content-Length"])))
            self.send_response_only(status, "canary in the answer")
            self.end_headers()

        def log_message(self, *_: Any) -> None:
            """Say nothing."""

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}/hook?token=canary-token", got
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def test_what_is_marked_appears_in_no_log_metric_or_foreign_answer(tmp_path: Path) -> None:
    """Address, subject, text, password, webhook token and idempotency key, at debug level,
    through calls that succeed and calls that are refused."""
    env = {
        "RELAY_LOG__LEVEL": "debug",
        "RELAY_WEBHOOKS__ALLOW_PRIVATE": "true",
        "RELAY_OUTBOUND__RETRY_UNIT": "10ms",
        "RELAY_OUTBOUND__MAX_ATTEMPTS": "2",
    }
    with receiving(500) as (url, got), RelayProcess(tmp_path / "data", env=env) as relay:
        admin = {"Authorization": f"Bearer {relay.run['admin_token']}"}
        with httpx.Client(base_url=relay.run["http"] + "/api/v1", headers=admin) as client:
            key = client.post("/keys", json={"owner": "shop", "scopes": ["send"]}).json()
            own = {"Authorization": f"Bearer {key['token']}"}
            answers = _use_everything(client, own, url)
            eventually_sync(
                lambda: got, "two are posted", until=lambda posts: len(posts) >= 2, within=40.0
            )
            listed = client.get("/outbound").text
            metrics = httpx.get(relay.run["http"] + "/metrics").text
        with psycopg.connect(relay.run["database_url"]) as sql:
            errors = sql.execute(
                "SELECT error FROM relay.outbound_log UNION ALL"
                " SELECT error FROM relay.outbound_tries UNION ALL"
                " SELECT error FROM relay.webhook_events UNION ALL"
                " SELECT convert_from(password, 'UTF8') FROM relay.senders"
            ).fetchall()
        assert relay.stop() == 0
    log = relay.log_file.read_text()
    assert "webhook.given_up" in log
    assert "http.request" in log
    for name, text in {
        "log": log,
        "metrics": metrics,
        "the administrator's list": listed,
        "errors": str(errors),
        **answers,
    }.items():
        found = text.lower().find(CANARY)
        assert found < 0, f"{name}: {text[max(0, found - 200) : found + 100]}"
        assert key["token"] not in text


def _use_everything(client: httpx.Client, own: dict[str, str], url: str) -> dict[str, str]:
    """Make every call with the canary in it; the answers that must not repeat it."""

    def call(method: str, path: str, status: int, **options: Any) -> str:
        response = client.request(method, path, headers=own | options.pop("more", {}), **options)
        assert response.status_code == status, (path, response.text)
        return response.text

    message = {"from": "shop@example.org", "to": [PERSON], "subject": "canary", "text": "canary"}
    once = {"Idempotency-Key": "canary-key"}
    call("POST", "/webhooks", 201, json={"url": url})
    call("POST", "/messages/send", 202, json=message, more=once)
    answers = {
        "conflict": call("POST", "/messages/send", 409, json=message | {"text": "x"}, more=once)
    }
    wrong: dict[str, dict[str, Any]] = {
        "bad recipient": {"to": [PERSON, "canary"]},
        "bad sender": {"from": "canary"},
        "bad header": {"headers": {"X-A": "canary\n"}},
        "bad subject": {"subject": "canary\n"},
        "bad time": {"send_at": "canary"},
        "bad file": {"attachments": [{"filename": "canary/", "content": "canary"}]},
    }
    for name, changes in wrong.items():
        answers[name] = call("POST", "/messages/send", 422, json=message | changes)
    upstream = f"smtps://canary:{PASSWORD}@mail.example.org"
    call("POST", "/senders", 201, json={"address": PERSON, "upstream": upstream})
    answers["bad upstream"] = call(
        "POST", "/senders", 422, json={"address": PERSON, "upstream": upstream + ":x"}
    )
    call("POST", "/suppressions", 201, json={"address": PERSON, "reason": "canary"})
    suppressed = json.loads(call("POST", "/messages/send", 422, json=message))
    assert suppressed.pop("recipients") == [PERSON]  # for who sends to them, and in no sentence
    answers["suppressed"] = json.dumps(suppressed)
    call("DELETE", f"/suppressions/{PERSON}", 204)
    answers["none to remove"] = call("DELETE", f"/suppressions/{PERSON}", 404)
    call("GET", "/outbound", 200, params={"recipient": PERSON})
    answers["bad webhook"] = call("POST", "/webhooks", 422, json={"url": "ftp://canary.example"})
    return answers
