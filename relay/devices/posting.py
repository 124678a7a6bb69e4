"""Blobs over HTTP: a blocking client of `POST /api/v1/devices/{key}/blobs`.

What a push session cannot say, a time to live, it can.  A connection a blob.

Promises: `push` returns when the relay has said that the blob is durable, and raises
`RefusedByRelay`, with the reason that the wire format has for it, when it has said no.

Fails with `OSError` when there is no relay, none that answers in time, or none at that address.
"""

from __future__ import annotations

import http.client
import json
from contextlib import closing
from urllib.parse import urlencode, urlsplit

from relay.devices.client import RefusedByRelay
from relay.devices.wire import Reason

_REASONS = {
    400: Reason.MALFORMED,
    413: Reason.TOO_LARGE,
    422: Reason.MALFORMED,
    429: Reason.RATE_LIMITED,
    503: Reason.UNAVAILABLE,
    507: Reason.INBOX_FULL,
}
_LOW_DISK = "insufficient-storage"
_RETRY_AFTER = 5  # s, where the relay does not say


class BlobPoster:
    """Puts blobs at the relay whose HTTP address is `url`; `timeout` in seconds."""

    def __init__(self, url: str, timeout: float = 30.0) -> None:
        self._parts = urlsplit(url)
        self._timeout = timeout

    def push(self, recipient: bytes, envelope: bytes, ttl: float | None = None) -> None:
        """Return when the blob is durable; `ttl` in seconds.  `RefusedByRelay`."""
        path = f"{self._parts.path.rstrip('/')}/api/v1/devices/{recipient.hex()}/blobs"
        if ttl is not None:
            path += "?" + urlencode({"ttl": f"{max(ttl, 0.001):.3f}"})
        https = self._parts.scheme == "https"
        kind = http.client.HTTPSConnection if https else http.client.HTTPConnection
        with closing(
            kind(self._parts.hostname or "", self._parts.port, timeout=self._timeout)
        ) as connection:
            try:
                connection.request(
                    "POST", path, envelope, {"Content-Type": "application/octet-stream"}
                )
                answer = connection.getresponse()
                content = answer.read()
            except http.client.HTTPException as error:
                raise ConnectionError("the relay broke the connection") from error
        if answer.status == 201:
            return
        reason = _REASONS.get(answer.status)
        if reason is None:
            raise ConnectionError(f"it answers {answer.status}, as no device inbox does")
        if reason is Reason.INBOX_FULL and _case(content) == _LOW_DISK:
            reason = Reason.UNAVAILABLE
        said = answer.headers.get("Retry-After", "")
        raise RefusedByRelay(reason, int(said) if said.isdecimal() else _RETRY_AFTER)


def _case(content: bytes) -> str:
    """The last part of a problem's type."""
    try:
        return str(json.loads(content)["type"]).rpartition("/")[2]
    except (ValueError, KeyError, TypeError):
        return ""
