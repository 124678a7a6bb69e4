"""Example values of what calls take and answer, for `/openapi.json` and `/docs`.

What: a field is shown with the value that stands here under its name (`FIELDS`), or under its
model's and its own (`SPECIAL`); what is asked for is shown whole (`REQUESTS`), since a body has few
of the fields it could have.  A query string has what `QUERIES` says for its call, a path what
`PATHS` says for its parts.

Promises: the examples are of one story (Ada's inbox, a shop that writes to it), so an id or an
address means the same wherever it stands.  A test holds each example against its schema.

Fails with `Bug` for a field that has no example: when the description is made, so in the first test
that asks for it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from relay.errors import Bug
from relay.outbound.pacing.held_back import SAYS, Why

BASE = "http://127.0.0.1:8025"
"""Stands for the URL of the relay; whoever shows an example puts the real one in its place."""

BEARER = "ra_the-token-that-opens-this"
"""Stands for the caller's own credential; samples put the variable RELAY_TOKEN in its place."""

DOMAIN = "relay.localhost"
"""Stands for the first domain of the relay, likewise."""

_ADA, _SHOP = f"ada@{DOMAIN}", f"shop@{DOMAIN}"
_MESSAGE = "01a1fe77-f8c8-7278-8db0-bae5d604828d"
_OUTBOUND = "01a1fe78-3a10-7cf2-9c1e-5b0f6f6de2a4"
_KEY = "01a1fe70-11d4-7b7e-8f43-90b1c2d3e4f5"
_ACCOUNT = "01a1fe71-52c6-7a09-a3e8-1f2d3c4b5a69"
_WEBHOOK = "01a1fe72-7b3f-7d55-b1a0-6e5d4c3b2a18"
_EVENT = "01a1fe79-0c4e-7123-94d5-a6b7c8d9e0f1"
_DEVICE = "5f" * 32
_TOKEN = "A1" * 43  # as long as a mailed one
_NOW, _SOON, _LATER = "2026-11-23T05:00:00Z", "2026-11-23T05:00:02Z", "2026-11-23T06:00:00Z"

PATHS: Mapping[str, str] = {
    "address": _ADA,
    "message_id": _MESSAGE,
    "mailbox_id": "01a1fe77-0a5b-7c3d-9e1f-2a3b4c5d6e7f",
    "seal": "1795410120.c2VhbA",
    "index": "0",
    "name": "webhooks",
    "key_id": _KEY,
    "entry": _SHOP,
    "account_id": _ACCOUNT,
    "event_id": _EVENT,
    "key": _DEVICE,
    "path": "docs.js",
    "case": "mailbox-not-found",
    "domain": "shop.example",
}
"""Part of a path to what stands in it, unless `CALL_PATHS` says otherwise."""

CALL_PATHS: Mapping[str, Mapping[str, str]] = {
    "deleteSuppression": {"entry": "bob@example.org"},
    "deleteWebhook": {"entry": _WEBHOOK},
    "revokeKey": {"entry": _KEY},
    **{
        call: {"message_id": _OUTBOUND}
        for call in (
            "getSentMessage",
            "listDeliveryEvents",
            "getRawSentMessage",
            "retrySentMessage",
            "cancelSentMessage",
            "holdSentMessage",
        )
    },
}
"""Calls whose paths have other examples, by their names."""

QUERIES: Mapping[str, Mapping[str, Any]] = {
    "waitForMessage": {"timeout": 30},
    "waitForAnyMessage": {"timeout": 30, "subject": "code"},
    "listMessages": {"limit": 10},
    "listAllMessages": {"q": "subject:code is:unread", "limit": 10},
    "markMessagesRead": {"q": "from:shop"},
    "countMessages": {"q": "from:shop"},
    "changeMessages": {"q": "from:shop"},
    "changeMailboxMessages": {"q": "*"},
    "deleteMailboxMessages": {"q": "before:2026-11-01"},
    "deleteMessages": {"q": "tag:newsletter before:2026-11-01"},
    "listSentMessages": {"status": "bounced", "limit": 10},
    "listFailures": {"status": "failed"},
    "retryFailures": {"domain": "example.org"},
    "countMatchingSentMessages": {"status": "queued", "domain": "example.org"},
    **{
        f"{verb}MatchingSentMessages": {"domain": "example.org"}
        for verb in ("retry", "cancel", "hold")
    },
    "listHistory": {"hours": 24},
    "countDeferredMail": {"domain": "example.org"},
    "flushQueue": {"domain": "example.org"},
    "pushBlob": {"ttl": "1h"},
    "readLogs": {"level": "warning"},
}
"""What a query string has in examples, by the call's name."""

REQUESTS: Mapping[str, Any] = {
    "Credentials": {"token": BEARER},
    "NewLink": {"lasts": 300},
    "Wanted": {"path": f"/api/v1/mailboxes/{_ADA}/messages/{_MESSAGE}/raw"},
    "NewMailbox": {"ttl_minutes": 60},
    "MessageChange": {"is_read": True, "add_tags": ["seen"]},
    "MessagesToDelete": {"ids": [_MESSAGE]},
    "NewMessage": {
        "from": f"Shop <{_SHOP}>",
        "to": [_ADA],
        "subject": "Your code",
        "text": "Your code is 482913.",
    },
    "NewDkimKeys": {"domain": "shop.example"},
    "Release": {"to": ["bob@example.org"]},
    "NewSender": {"address": _SHOP, "upstream": "loop:"},
    "NewSuppression": {"address": "bob@example.org", "reason": "asked for no more mail"},
    "NewWebhook": {"url": "https://shop.example/hooks/mail", "events": ["message.bounced"]},
    "NewAccount": {"email": "ada@example.org", "login": "ada"},
    "TokenToUse": {"token": _TOKEN, "code": "48291"},
    "FaultRates": {"rcpt": {"code": 451, "rate": 0.1}},
    "NewKey": {"owner": "shop", "scopes": ["read", "send"]},
    "Renewal": {"expires_in": 3600},
    "ReportForm": {
        "type": "bounced",
        "message": "b-agqrvqw7jb7hrahaz2wmqv4ddcymkc23hr4fvdcv2w6aezyb@returns.shop.example",
        "recipient": _ADA,
        "status": "5.1.1",
        "text": "550 5.1.1 no such user",
    },
}
"""A body that is asked for, by its model's name."""

RAW: Mapping[str, str] = {
    "application/octet-stream": "what only the device can read",
    "application/x-www-form-urlencoded": f"token={_TOKEN}",
    "unsubscribe": "List-Unsubscribe=One-Click",
    "application/json": '{"Type": "Notification", '
    '"MessageId": "22b80b92-fdea-4c2c-8f9d-bdfb0c7bf324"}',
}
"""A body that its call reads by itself, by its media type or, where that has several,
by the name of its call."""

TEXTS: Mapping[str, str] = {
    "text/event-stream": f'event: new_message\nid: {_MESSAGE}\ndata: {{"id":"{_MESSAGE}"}}\n\n',
    "message/rfc822": f"From: Shop <{_SHOP}>\r\nTo: {_ADA}\r\n"
    "Subject: Your code\r\n\r\nYour code is 482913.\r\n",
    "application/octet-stream": "%PDF-1.7",
    "image/*": "GIF89a",
    "text/javascript": "export const title = 1;\n",
    "text/html": "<!doctype html>\n<title>Relay</title>\n",
    "application/x-ndjson": '{"timestamp":"2026-11-23T05:00:00Z","level":"warning",'
    '"event":"relay.disk_low","actor":"ticker"}\n',
    "text/plain": 'relay_http_answers_total{method="GET",status="200"} 42.0\n',
}
"""An answer that is no JSON, by its media type."""

FIELDS: Mapping[str, Any] = {
    # Who
    "owner": "shop",
    "owner_type": "api",
    "scopes": ["read", "send"],
    "plan": "pro",
    "page_key": "pk_0f3c9a7e",
    "code": "48291",
    "session_token": None,
    "token": "rk_shown-this-once",
    "from": None,
    "kind": "api",
    "secret": "whsec_c2hvd24gdG8gaXRzIG93bmVy",
    "username": None,
    # When
    "at": _NOW,
    "created_at": _NOW,
    "received_at": _NOW,
    "expires_at": _LATER,
    "revoked_at": None,
    "last_used_at": _SOON,
    "sent_at": _SOON,
    "next_retry_at": None,
    "not_after": None,
    "finished_at": _SOON,
    "given_up_at": _LATER,
    "started_at": _NOW,
    "status_changed_at": _NOW,
    "activated_at": None,
    "suspended_at": None,
    "unsuspended_at": None,
    # Mailboxes
    "address": _ADA,
    "is_active": True,
    "message_count": 1,
    "unread_count": 1,
    "unread": 1,
    "bytes": 612,
    "mailboxes": 1,
    "max_mailboxes": 10000,
    "default_ttl_minutes": 60,
    "max_ttl_minutes": 10080,
    "max_messages": 100000,
    "max_bytes": 1073741824,
    # Messages
    "id": _MESSAGE,
    "from_address": _SHOP,
    "from_name": "Shop",
    "to": _ADA,
    "subject": "Your code",
    "is_read": False,
    "has_attachments": True,
    "size": 612,
    "mailbox": _ADA,
    "tags": ["signup"],
    "snippet": "Your code is 482913.",
    "otp": "482913",
    "headers": {"From": f"Shop <{_SHOP}>", "To": _ADA, "Subject": "Your code"},
    "body_text": "Your code is 482913.\n",
    "body_html": None,
    "links": ["https://shop.example/verify?code=482913"],
    "error": None,
    "index": 0,
    "filename": "terms.pdf",
    "content_type": "application/pdf",
    "content_id": None,
    "type": "new_message",
    "count": 3,
    "attributed": True,
    "result": "pass",
    "detail": "the key of shop.example verifies it",
    "score": 9.5,
    "reasons": ["-0.5 DMARC is none"],
    "severity": "warning",
    # What was sent
    "sender": _SHOP,
    "recipient": _ADA,
    "peer": "mx.example.net[192.0.2.25]:587",
    "tls": "TLSv1.3",
    "reply": "250 2.0.0 Ok: queued as 4dKq3Z1xWb",
    "status": "sent",
    "attempts": 1,
    "priority": "normal",
    "tag": "signup",
    "domain": "example.org",
    "latest": _OUTBOUND,
    "phase": "dot",
    "duration": 0.012,
    "attempt": 1,
    "upstream": "loop:",
    "reason": "asked for no more mail",
    "message_id": _OUTBOUND,
    "url": "https://shop.example/hooks/mail",
    "events": ["message.bounced"],
    # The queue
    "paused": False,
    "queued": 12,
    "due": 3,
    "processing": 1,
    "held": 0,
    "lost": 0,
    "oldest_due_seconds": 0.4,
    "by_priority": {"normal": 12},
    "last_hour": {"sent": 240, "bounced": 2},
    "route": "smtp+starttls://mx.example.net:587",
    "window": 4,
    "busy": 2,
    "strikes": 1,
    "opens_in": 12.5,
    "received": 240,
    "sent": 180,
    "failed": 1,
    "bounced": 2,
    "unfinished": 12,
    "most_per_minute": 60.0,
    "most_connections": 5,
    "limits": "at most 60/min; 5 connections at most",
    "all": 196,
    "cancelled": 0,
    "more": [],
    "retry": 3,
    "cancel": 12,
    "hold": 9,
    "record": "DMARC",
    "found": None,
    "wanted": "v=DMARC1; p=none; rua=mailto:postmaster@shop.example",
    "ok": False,
    "optional": False,
    "selector": "r20261123050000",
    "algorithm": "rsa-sha256",
    "retired_at": None,
    # Accounts
    "email": "ada@example.org",
    "login": "ada",
    "action": "activation",
    "account": _ACCOUNT,
    "activations": 2,
    "recoveries": 0,
    "parked": 0,
    "oldest_seconds": 1.5,
    "batches": 40,
    "letters": 96,
    "monthly": 100.0,
    "spent": 12.5,
    "letters_spent": 12500,
    "letters_now": 250,
    "letters_per_second": 0.03,
    # Devices
    "key": _DEVICE,
    "blobs": 4,
    "inboxes": 2,
    "sessions": 1,
    "oldest_age": 3.2,
    "waiting": 1,
    "push_sessions": 1,
    "receive_sessions": 1,
    "path": "/var/lib/relay/devices/snapshot.db",
    # The relay
    "version": "0.1.0",
    "smtp": "127.0.0.1:2525",
    "lmtp": None,
    "submission": "127.0.0.1:2587",
    "submission_tls": None,
    "pop3": None,
    "pop3_tls": None,
    "starttls": False,
    "domains": [DOMAIN],
    "capture": True,
    "release": False,
    "public_url": BASE,
    "openapi": "3.1.0",
    "info": {"title": "Relay", "version": "0.1.0"},
    "servers": [{"url": BASE}],
    "paths": {},
    "components": {},
    "notices": None,
    "grade": "warning",
    "text": "The disk is nearly full.",
    "about": "now",
    "place": None,
    "command": None,
    "unparsed": 0,
    "counters": {"received": 240, "sent": 96},
    "seconds": 75.0,
    "name": "webhooks",
    "state": "running",
    "restarts": 0,
    "restart": "permanent",
    "strategy": None,
    "max_restarts": None,
    "within": None,
    "mailbox_depth": 0,
    "last_event": "ready",
    "last_event_at": _NOW,
    "level": "info",
    "event": "webhook.deferred",
    "commands": ["restart", "pause", "sweep"],
    "processes": [],
    "children": [],
    "rate": 0.1,
    "new_signing_key": True,
    "new_encryption_key": True,
    "resealed": 2,
    "unreadable": 0,
    "old_keys_dropped": False,
    "stored": 1,
}
"""A field of an answer to its value, where `SPECIAL` has none."""

SPECIAL: Mapping[str, Any] = {
    "Health.status": "ok",
    "Counted.more": False,
    "Readiness.status": "ready",
    "Document.tags": [{"name": "mailboxes", "description": "Make an inbox"}],
    "Link.code": "9f8e7d6c",
    "SettingEntry.name": "smtp.bind",
    "SettingEntry.variable": "RELAY_SMTP__BIND",
    "SettingEntry.value": "127.0.0.1:2525",
    "SettingEntry.default": "127.0.0.1:2525",
    "SettingEntry.source": "default",
    "SettingEntry.meaning": "Where SMTP is served.",
    "Link.url": f"{BASE}/#/signin?code=9f8e7d6c",
    "Ticket.url": f"/api/v1/mailboxes/{_ADA}/messages/{_MESSAGE}/raw?ticket=7d6c5b4a",
    "FindingEntry.id": "no-list-unsubscribe",
    "FindingEntry.text": "Bulk mail without List-Unsubscribe is filtered.",
    "QueuedMessage.id": _OUTBOUND,
    "QueuedMessage.status": "queued",
    "OutboundMessage.id": _OUTBOUND,
    "Failure.status": "bounced",
    "DomainTraffic.held": None,
    "Destination.why": str(Why.DEFERRING),
    "Destination.says": SAYS[Why.DEFERRING],
    "Destination.since": _NOW,
    "Destination.until": _LATER,
    "Destination.reason": "rcpt: 451 4.3.2 too busy",
    "Destination.rule": "google:57",
    "Destination.owner": None,
    "Destination.domains": ["example.org"],
    "Failure.error": "550 5.1.1 no such user",
    "DeliveryEvent.code": 250,
    "DeliveryEvent.enhanced": "2.0.0",
    "SenderEntry.address": _SHOP,
    "RefusedEntry.address": f"adda@{DOMAIN}",
    "RefusedEntry.why": "unknown",
    "RefusedEntry.reply": "550 5.1.1 No such mailbox here",
    "RefusedEntry.count": 1,
    **{
        f"{model}.{field}": value
        for model in ("DnsRecord", "DkimKeyEntry", "DkimRecords", "DkimDomainEntry")
        for field, value in {
            "domain": "shop.example",
            "name": "r20261123050000._domainkey.shop.example",
            "type": "TXT",
            "value": "v=DKIM1; k=rsa; p=MIIBIjANBgkqhkiG9w0BAQEFAAOCAQ8A",
            "state": "active",
            "activated_at": _NOW,
        }.items()
    },
    "SuppressionEntry.address": "bob@example.org",
    "SuppressionEntry.cause": "manual",
    "SuppressionEntry.owner": _KEY,
    "SuppressionEntry.owner_name": "shop",
    "WebhookEntry.id": _WEBHOOK,
    "UntoldEvent.id": _EVENT,
    "UntoldEvent.type": "message.bounced",
    "UntoldEvent.attempts": 10,
    "UntoldEvent.error": "503 Service Unavailable",
    "AccountEntry.id": _ACCOUNT,
    "AccountEntry.status": "provisioned",
    "AccountWithLetters.id": _ACCOUNT,
    "AccountWithLetters.status": "provisioned",
    "UsedToken.status": "active",
    "StoredBlob.id": _EVENT,
    "KeyEntry.id": _KEY,
    "CreatedKey.id": _KEY,
    "KeyEntry.expires_at": None,
    "CreatedKey.expires_at": None,
    "FaultRate.code": 451,
    "IngestOutcome.status": "stored",
    "NotificationOutcome.status": "reported",
    "AccountWithLetters.letters": [
        {"action": "activation", "message_id": _OUTBOUND, "status": "sent", "at": _NOW}
    ],
}
"""A field of one model (`Model.field`) to its value there."""

_SCHEMA = "#/components/schemas/"


def example(schema: Mapping[str, Any], schemas: Mapping[str, Any], place: str = "") -> Any:
    """Return an example of `schema`, whose references are to `schemas`; `Bug` if there is none."""
    if "$ref" in schema:
        model = str(schema["$ref"]).removeprefix(_SCHEMA)
        return REQUESTS[model] if model in REQUESTS else _model(model, schemas)
    if "anyOf" in schema:
        return example(schema["anyOf"][0], schemas, place)
    if schema.get("type") == "array":
        return [example(schema["items"], schemas, place)]
    raise Bug(f"{place or schema} has no example in relay/http/description/examples.py")


def _model(model: str, schemas: Mapping[str, Any]) -> dict[str, Any]:
    made = {}
    for field, schema in schemas[model]["properties"].items():
        place = f"{model}.{field}"
        if place in SPECIAL:
            made[field] = SPECIAL[place]
        elif field in FIELDS:
            made[field] = FIELDS[field]
        else:
            made[field] = example(schema, schemas, place)
    return made
