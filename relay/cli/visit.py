"""Opens the link of a confirmation mail as a person's browser would, as far as that is safe.

Promises
  * Only public addresses are connected to, and only addresses that were checked, on every step
    of a chain of redirects (`relay.ssrf_guard` holds the rules); `allow_private` lifts that.
  * A page whose one form is a confirmation (POST to its own origin, nothing to fill in but a code
    that the mail gave) is submitted: mail scanners open links, so careful sites do nothing on GET.
  * No script runs, nothing that a page embeds is loaded; bodies, redirects and time are bounded.
    Cookies last for the visit and go back to the host that set them.

Fails with `NotOpened`, a sentence for whoever asked.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from html.parser import HTMLParser
from http.cookies import CookieError, SimpleCookie
from urllib.parse import urldefrag, urlencode, urljoin

import httpx
import trio

from relay import __version__
from relay.errors import TemporaryFailure
from relay.ssrf_guard import BadUrl, check_url
from relay.webhooks.post import NotPosted, addresses_of

TIMEOUT = 20.0  # seconds for all of a visit
MAX_PAGE = 256 * 1024  # bytes of a page that are read
MAX_STEPS = 8  # requests of a visit
EXCERPT = 600  # characters of a page's text that are reported

_CODE_FIELD = re.compile(r"code|otp|pin\b|token|one-time", re.IGNORECASE)
_FILLED_IN = {"text", "number", "tel", "password", "email", "search", "url", "date", "file"}


class NotOpened(TemporaryFailure):
    """The link could not be opened, or must not be."""


@dataclass(frozen=True)
class Page:
    """The page on which a visit ended."""

    status: int
    url: str
    title: str
    text: str
    steps: tuple[str, ...]  # "GET 302", "GET 200", "POST 200"
    submitted: bool  # whether a confirmation form was sent


async def visit(link: str, *, code: str | None = None, allow_private: bool = False) -> Page:
    """Open `link`, follow its redirects, confirm where one button is all there is to do."""
    try:
        with trio.fail_after(TIMEOUT):
            return await _Visit(code, allow_private).go(link)
    except trio.TooSlowError as error:
        raise NotOpened(f"The link did not lead to a page within {TIMEOUT:g} s.") from error


@dataclass
class _Answer:
    url: httpx.URL
    status: int
    headers: httpx.Headers
    body: bytes

    def document(self) -> HtmlDocument:
        document = HtmlDocument()
        if "html" in self.headers.get("content-type", ""):
            # Not closed: what a page leaves unfinished would be tried again from each "<" on, in
            # time that grows with its square, and a page is a stranger's.
            document.feed(self.body.decode("utf-8", "replace"))
        return document


class _Visit:
    def __init__(self, code: str | None, allow_private: bool) -> None:
        self._code = code
        self._allow_private = allow_private
        self._cookies: dict[str, dict[str, str]] = {}  # host -> name -> value
        self._steps: list[str] = []

    async def go(self, link: str) -> Page:
        answer = await self._follow("GET", link)
        document = answer.document()
        form = document.confirmation(self._code) if answer.status < 400 else None
        target = urljoin(str(answer.url), form.action) if form is not None else ""
        submitted = form is not None and _origin(target) == _origin(str(answer.url))
        if form is not None and submitted:
            answer = await self._follow(
                "POST", target, urlencode(form.values).encode(), came_from=str(answer.url)
            )
            document = answer.document()
        return Page(
            answer.status,
            str(answer.url),
            document.title,
            document.text[:EXCERPT],
            tuple(self._steps),
            submitted,
        )

    async def _follow(
        self, method: str, link: str, body: bytes | None = None, came_from: str = ""
    ) -> _Answer:
        while True:
            if len(self._steps) == MAX_STEPS:
                raise NotOpened(f"The link leads on and on: {', '.join(self._steps)}.")
            answer = await self._request(method, urldefrag(link).url, body, came_from)
            self._steps.append(f"{method} {answer.status}")
            onward = answer.headers.get("location")
            if answer.status not in {301, 302, 303, 307, 308} or not onward:
                return answer
            if answer.status not in {307, 308}:
                method, body = "GET", None
            elif body is not None and _origin(urljoin(link, onward)) != _origin(link):
                raise NotOpened("The page sends its form on to another site.")
            link = urljoin(str(answer.url), onward)

    async def _request(self, method: str, link: str, body: bytes | None, came_from: str) -> _Answer:
        try:
            url = check_url(link, allow_private=self._allow_private)
            addresses = await addresses_of(url, allow_private=self._allow_private)
        except BadUrl as error:
            raise NotOpened(f"The link {error}.") from error
        except NotPosted as error:
            raise NotOpened(f"The link is not opened: {error}.") from error
        headers = {
            "Host": url.netloc.decode("ascii"),
            "User-Agent": f"relay/{__version__}",
            "Accept": "text/html,*/*;q=0.5",
            "Accept-Encoding": "identity",
            "Connection": "close",
        }
        if kept := self._cookies.get(url.host):
            headers["Cookie"] = "; ".join(f"{name}={value}" for name, value in kept.items())
        if body is not None:
            headers["Content-Type"] = "application/x-www-form-urlencoded"
            headers["Origin"] = _origin(came_from)
            headers["Referer"] = came_from
        failure: Exception | None = None
        for address in addresses:
            request = httpx.Request(
                method,
                url.copy_with(host=address),
                headers=headers,
                content=body,
                extensions={"sni_hostname": url.raw_host.decode("ascii").strip("[]")},
            )
            try:
                return await self._exchange(url, request)
            except (httpx.ConnectError, httpx.ConnectTimeout) as error:
                failure = error  # nothing was sent; the next address may do
            except httpx.HTTPError as error:
                raise NotOpened(f"{url.host} broke the connection.") from error
        raise NotOpened(f"{url.host} cannot be connected to.") from failure

    async def _exchange(self, url: httpx.URL, request: httpx.Request) -> _Answer:
        async with httpx.AsyncClient(
            trust_env=False, follow_redirects=False, timeout=TIMEOUT
        ) as client:
            response = await client.send(request, stream=True)
            page = bytearray()
            async for chunk in response.aiter_bytes():
                page += chunk
                if len(page) >= MAX_PAGE:
                    break
            await response.aclose()
        self._keep_cookies(url.host, response.headers)
        return _Answer(url, response.status_code, response.headers, bytes(page[:MAX_PAGE]))

    def _keep_cookies(self, host: str, headers: httpx.Headers) -> None:
        for line in headers.get_list("set-cookie"):
            try:
                for name, morsel in SimpleCookie(line).items():
                    self._cookies.setdefault(host, {})[name] = morsel.value
            except CookieError:
                continue


def _origin(url: str) -> str:
    parsed = httpx.URL(url)
    return f"{parsed.scheme}://{parsed.netloc.decode('ascii')}"


@dataclass
class HtmlForm:
    """A form, as far as it is known how to send it."""

    action: str
    post: bool
    values: list[tuple[str, str]] = field(default_factory=list)
    open: list[tuple[str, str]] = field(default_factory=list)  # (name, what it seems to ask for)
    strange: bool = False  # it asks for what only a person can give
    pressed: bool = False  # a button's value has been taken


class HtmlDocument(HTMLParser):
    """What a page says: its title, its text, its forms."""

    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self._title: list[str] = []
        self._text: list[str] = []
        self._inside: list[str] = []
        self._forms: list[HtmlForm] = []
        self._form: HtmlForm | None = None

    @property
    def title(self) -> str:
        """Its title, on one line."""
        return " ".join("".join(self._title).split())[:200]

    @property
    def text(self) -> str:
        """What it shows, on one line."""
        return " ".join(" ".join(self._text).split())

    def confirmation(self, code: str | None) -> HtmlForm | None:
        """Return the one form that only confirms, the code filled in; None if there is none."""
        posts = [form for form in self._forms if form.post]
        if len(posts) != 1 or posts[0].strange:
            return None
        form = posts[0]
        if not form.open:
            return form
        ((name, purpose), *others) = form.open
        if others or code is None or not _CODE_FIELD.search(purpose):
            return None
        form.values.append((name, code))
        return form

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = {name: value or "" for name, value in attrs}
        if tag in {"title", "script", "style", "noscript"}:
            self._inside.append(tag)
        elif tag == "form":
            # Files go in another encoding, which no confirmation needs.
            self._form = HtmlForm(
                given.get("action", ""), given.get("method", "get").lower() == "post"
            )
            self._form.strange = "multipart" in given.get("enctype", "")
            self._forms.append(self._form)
        elif self._form is not None and "disabled" not in given:
            self._field(self._form, tag, given)

    @staticmethod
    def _field(form: HtmlForm, tag: str, given: dict[str, str]) -> None:
        name = given.get("name", "")
        kind = given.get("type", "submit" if tag == "button" else "text").lower()
        if tag in {"select", "textarea"} or (tag == "input" and kind in {"checkbox", "radio"}):
            form.strange = True
        elif tag in {"input", "button"} and kind == "submit":
            if name and not form.pressed:
                form.values.append((name, given.get("value", "")))
                form.pressed = True
        elif tag == "input" and kind == "hidden" and name:
            form.values.append((name, given.get("value", "")))
        elif tag == "input" and kind in _FILLED_IN and name:
            if given.get("value") and "readonly" in given:
                form.values.append((name, given["value"]))
            else:
                purpose = f"{name} {given.get('autocomplete', '')} {given.get('id', '')}"
                form.open.append((name, purpose))

    def handle_endtag(self, tag: str) -> None:
        if self._inside and self._inside[-1] == tag:
            self._inside.pop()
        elif tag == "form":
            self._form = None

    def handle_data(self, data: str) -> None:
        if not self._inside:
            self._text.append(data)
        elif self._inside[-1] == "title":
            self._title.append(data)
