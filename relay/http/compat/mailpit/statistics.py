"""What Mailpit says of itself: what it has and has counted, and how it is set up."""

from __future__ import annotations

from quart import Response

from relay.chance import time
from relay.http.compat.callers_mail import CallersMail
from relay.http.compat.declarations import compat
from relay.http.compat.mailpit.shared import API
from relay.http.operations import Call, json_response
from relay.mailboxes.mails import EVERYTHING
from relay.metrics import registry
from relay.outbound.routing.senders import LOOP

_COUNTED = ("process_", "relay_smtp_messages", "relay_smtp_received_bytes")


def register(callers: CallersMail) -> None:
    """Declare the calls."""
    api, deps, mails = callers.api, callers.deps, callers.mails

    @api.add("GET", f"{API}/info", compat("mailpitInfo", "read"))
    async def info(call: Call) -> Response:
        found = await callers.search(call, EVERYTHING, 0, 0)
        everything = call.caller is not None and call.caller.key is None
        return json_response(
            {
                "Version": f"relay {deps.version}",
                "LatestVersion": f"relay {deps.version}",
                "Database": "",
                "DatabaseSize": await mails.database_size() if everything else 0,
                "Messages": found.count,
                "Unread": found.unread,
                "Tags": await callers.tags(call),
                "RuntimeStats": _runtime_stats(everything),
            }
        )

    @api.add("GET", f"{API}/webui", compat("mailpitConfiguration", "read"))
    async def configuration(call: Call) -> Response:
        texts = (
            "SMTPServer", "ReturnPath", "AllowedRecipients", "BlockedRecipients", "OverrideFrom",
            "RecipientAllowlist",
        )  # fmt: skip
        enabled = bool(deps.release_to) and deps.upstream != LOOP
        relays = {"Enabled": enabled, **dict.fromkeys(texts, ""), "PreserveMessageIDs": True}
        return json_response(
            {
                "Label": "Relay",
                "MessageRelay": relays,
                "SpamAssassin": False,
                "ChaosEnabled": deps.chaos is not None,
                "DuplicatesIgnored": False,
                "HideDeleteAllButton": False,
            }
        )


def _runtime_stats(everything: bool) -> dict[str, int]:
    """What the counters of this relay say; nothing to whom they do not concern."""
    found: dict[tuple[str, str], float] = {}
    if everything:
        for metric in registry.collect():
            if metric.name.startswith(_COUNTED):
                for sample in metric.samples:
                    key = sample.name, sample.labels.get("outcome", "")
                    found[key] = found.get(key, 0.0) + sample.value
    began = found.get(("process_start_time_seconds", ""))
    messages = "relay_smtp_messages_total"
    return {
        "Uptime": 0 if began is None else max(0, int(time() - began)),
        "Memory": int(found.get(("process_resident_memory_bytes", ""), 0)),
        "MessagesDeleted": 0,  # not counted here
        "SMTPAccepted": int(found.get((messages, "accepted"), 0)),
        "SMTPAcceptedSize": int(found.get(("relay_smtp_received_bytes_total", ""), 0)),
        "SMTPRejected": int(found.get((messages, "rejected"), 0)),
        "SMTPIgnored": 0,  # nothing is
    }
