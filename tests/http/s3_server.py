"""A small S3: objects in buckets in the path, given to whoever signed the request.

The signature is checked as the server's side of Signature Version 4 says, from the request as it
came over the wire; it shares no code with what signs.
"""

from __future__ import annotations

import hashlib
import hmac
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

ACCESS, SECRET, TOKEN, REGION = "AKTEST", "s3cret/+key", "session/token==", "eu-west-1"


class Objects(ThreadingHTTPServer):
    """`objects`: bytes and further headers by path; `asked`: the paths and answers so far;
    `refuse`: a status to answer with."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.objects: dict[str, tuple[bytes, dict[str, str]]] = {}
        self.asked: list[tuple[str, int]] = []
        self.refuse = 0

    @property
    def base(self) -> str:
        """Where it listens."""
        return f"http://127.0.0.1:{self.server_address[1]}"


@contextmanager
def serving() -> Iterator[Objects]:
    """Run one for the block."""
    with Objects() as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join()


class _Handler(BaseHTTPRequestHandler):
    server: Objects

    def do_GET(self) -> None:
        path, _, query = self.path.partition("?")
        status, body = 403, b"<Error><Code>SignatureDoesNotMatch</Code></Error>"
        headers: dict[str, str] = {}
        if self.server.refuse:
            status, body = self.server.refuse, b"<Error/>"
        elif self._signed(path, query):
            status, body = 404, b"<Error><Code>NoSuchKey</Code></Error>"
            if path in self.server.objects:
                status = 200
                body, headers = self.server.objects[path]
        self.server.asked.append((path, status))
        self.send_response(status)
        for name, value in {**headers, "Content-Length": str(len(body))}.items():
            self.send_header(name, value)
        self.end_headers()
        with suppress(ConnectionError):  # too large for whoever asked
            self.wfile.write(body)

    def _signed(self, path: str, query: str) -> bool:
        given: dict[str, str] = {}
        for pair in query.split("&"):
            name, _, value = pair.partition("=")
            given[name] = value
        try:
            stamp = given["X-Amz-Date"]
            at = datetime.strptime(stamp, "%Y%m%dT%H%M%SZ").replace(tzinfo=UTC)
            life = timedelta(seconds=int(given["X-Amz-Expires"]))
            signature = given.pop("X-Amz-Signature")
            names = given["X-Amz-SignedHeaders"].split("%3B")
            access, scope = given["X-Amz-Credential"].split("%2F", 1)
        except (KeyError, ValueError):
            return False
        scope = scope.replace("%2F", "/")
        canonical = "\n".join(
            [
                "GET",
                path,
                "&".join(f"{name}={given[name]}" for name in sorted(given)),
                *(f"{name}:{' '.join((self.headers[name] or '').split())}" for name in names),
                "",
                ";".join(names),
                "UNSIGNED-PAYLOAD",
            ]
        )
        hashed = hashlib.sha256(canonical.encode("ascii")).hexdigest()
        key = b"AWS4" + SECRET.encode()
        for step in (stamp[:8], REGION, "s3", "aws4_request"):
            key = hmac.digest(key, step.encode(), "sha256")
        text = f"AWS4-HMAC-SHA256\n{stamp}\n{scope}\n{hashed}"
        return (
            given["X-Amz-Algorithm"] == "AWS4-HMAC-SHA256"
            and access == ACCESS
            and scope == f"{stamp[:8]}/{REGION}/s3/aws4_request"
            and "host" in names
            and given.get("X-Amz-Security-Token") == "session%2Ftoken%3D%3D"
            and at - timedelta(minutes=15) <= datetime.now(UTC) <= at + life
            and hmac.compare_digest(signature, hmac.new(key, text.encode(), "sha256").hexdigest())
        )

    def log_message(self, *_: object) -> None:
        pass
