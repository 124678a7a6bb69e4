"""A server of policies (MTA-STS) on loopback, over real TLS, that can also misbehave."""

from __future__ import annotations

import ssl
from collections import Counter
from collections.abc import Mapping

import trio

from relay.webhooks.post import Got, Poster


def policy(mode: str, *hosts: str, max_age: int = 86_400) -> bytes:
    """The text of a policy."""
    named = "".join(f"mx: {host}\r\n" for host in hosts)
    return f"version: STSv1\r\nmode: {mode}\r\n{named}max_age: {max_age}\r\n".encode()


class PolicyServer:
    """Serves the bodies of `answers`, by domain; what is no body is an answer as a whole."""

    def __init__(
        self,
        tls: ssl.SSLContext,
        answers: Mapping[str, bytes],
        *,
        host: str = "127.0.0.1",
        port: int = 0,
    ) -> None:
        self.host = host
        self.tls = tls
        self.answers = dict(answers)
        self.asked: Counter[str] = Counter()
        self.connections = 0
        self.gate = trio.Event()
        self.gate.set()
        self.port = port

    async def run(
        self, *, task_status: trio.TaskStatus[PolicyServer] = trio.TASK_STATUS_IGNORED
    ) -> None:
        """Serve until cancelled."""
        (listener,) = await trio.open_tcp_listeners(self.port, host=self.host)
        self.port = listener.socket.getsockname()[1]
        task_status.started(self)
        await trio.serve_listeners(self._serve, [listener])

    async def _serve(self, plain: trio.SocketStream) -> None:
        self.connections += 1
        stream = trio.SSLStream(plain, self.tls, server_side=True, https_compatible=True)
        try:
            await self._answer(stream)
        except trio.BrokenResourceError:
            pass  # it does not trust this server, or has read enough
        finally:
            await trio.aclose_forcefully(stream)

    async def _answer(self, stream: trio.SSLStream[trio.SocketStream]) -> None:
        asked = (await stream.receive_some(65_536)).decode("ascii")
        if not asked:
            return  # it does not trust this server, and says so by leaving
        host = next(line for line in asked.split("\r\n") if line.lower().startswith("host:"))
        domain = host.partition(":")[2].strip().partition(":")[0].removeprefix("mta-sts.")
        assert asked.startswith("GET /.well-known/mta-sts.txt HTTP/1.1\r\n")
        self.asked[domain] += 1
        await self.gate.wait()
        body = self.answers[domain]
        if not body.startswith(b"HTTP/1.1 "):
            head = b"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nContent-Length: %d\r\n\r\n"
            body = head % len(body) + body
        await stream.send_all(body)


class Here(Poster):
    """Asks at another port than 443, which only root may serve."""

    port = 443

    async def get(self, text: str, headers: Mapping[str, str], most: int) -> Got:
        """As the other, at that port."""
        return await super().get(
            text.replace("/.well-known/", f":{self.port}/.well-known/"), headers, most
        )
