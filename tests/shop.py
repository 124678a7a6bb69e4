"""An application to be tested: one signs up at its page, and it mails a link that activates."""

from __future__ import annotations

import smtplib
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs


@contextmanager
def serving_shop(smtp: str) -> Iterator[str]:
    """Serve it; its URL.  It sends its mail to the relay whose SMTP is at `host:port`."""
    host, _, port = smtp.rpartition(":")

    class Page(BaseHTTPRequestHandler):
        def log_message(self, *_: object) -> None:
            pass

        def do_GET(self) -> None:
            if self.path == "/activate?token=1":
                self._answer("<h1>Welcome!</h1>")
            else:
                self._answer(
                    '<form method="post"><label>Email <input name="email"></label>'
                    "<button>Sign up</button></form>"
                )

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"])).decode()
            (address,) = parse_qs(body)["email"]
            link = f"http://{self.headers['Host']}/activate?token=1"
            text = f"Subject: Welcome\r\n\r\nGo to {link}\r\n"
            with smtplib.SMTP(host, int(port)) as session:
                session.sendmail("a@shop.example", [address], text)
            self._answer("Look into your inbox.")

        def _answer(self, html: str) -> None:
            self.send_response(200)
            self.send_header("Content-Type", "text/html")
            self.end_headers()
            self.wfile.write(html.encode())

    with ThreadingHTTPServer(("127.0.0.1", 0), Page) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
