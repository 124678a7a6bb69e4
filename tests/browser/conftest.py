"""A browser for tests: Debian's Chromium, each time as a user who never opened it before.

One browser is started for the tests of a file; each visit is a context of its own in it, with no
cookie, storage, cache or connection of another's.  Where Debian's headless shell is installed, that
is the browser: the same engine, script and network without windows, tabs and bars, which nobody
sees here and which cost more than the page.  What a profile makes a difference to has the whole of
Chromium, and one of its own.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, closing, contextmanager
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import (
    Browser,
    BrowserContext,
    Dialog,
    Error,
    Locator,
    Page,
    Playwright,
    sync_playwright,
)

from tests.npm import node_modules

HERE = Path(__file__).parent
ARTEFACTS = Path(__file__).parents[2] / "test-artefacts"
ARGUMENTS = [
    "--headless=new",
    "--no-sandbox",  # the tests may run as root, for whom Chromium has no sandbox
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--host-resolver-rules=MAP relay.example 127.0.0.1",  # a name for what is not local
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]
SIZES = {"desktop": (1400, 900), "tablet": (820, 1180), "phone": (390, 844)}
TIMEOUT = 15_000  # ms; for whatever a test waits for


class Visit:
    """A page that is being looked at, and all that it did meanwhile."""

    def __init__(self, context: BrowserContext, page: Page, name: str) -> None:
        context.set_default_timeout(TIMEOUT)
        self.context = context
        self.page = page
        self.console: list[str] = []
        self.errors: list[str] = []
        self.requests: list[str] = []
        self.popups: list[str] = []
        self.dialogs: list[str] = []
        self.downloads: list[str] = []
        self._name = name
        self.page.on("console", lambda said: self.console.append(f"{said.type}: {said.text}"))
        self.page.on("pageerror", lambda error: self.errors.append(str(error)))
        self.page.on("dialog", self._dismiss)
        self.page.on("download", lambda download: self.downloads.append(download.url))
        context.on("page", lambda opened: self.popups.append(opened.url))
        context.on("request", lambda request: self.requests.append(request.url))

    def _dismiss(self, dialog: Dialog) -> None:
        self.dialogs.append(dialog.message)
        dialog.dismiss()

    def foreign(self, own: str) -> list[str]:
        """What was asked of others than `own`, which embedded pictures are not."""
        return [url for url in self.requests if not url.startswith((own, "data:"))]

    def screenshot(self, what: str) -> None:
        """Keep what is seen now."""
        ARTEFACTS.mkdir(exist_ok=True)
        self.page.screenshot(path=ARTEFACTS / f"{what}-{self._name}.png", full_page=True)

    def to(self, view: str) -> None:
        """Go to a view of the page."""
        self.page.evaluate("view => { location.hash = view; }", f"#/{view}")

    def check(self, what: str, axe: str) -> None:
        """What is seen now must fit the screen and break no rule of accessibility, or is kept."""
        try:
            self._judge(what, axe)
        except AssertionError:
            self.screenshot(what)
            raise

    def _judge(self, what: str, axe: str) -> None:
        assert self.overflow() <= 0, what
        if not self.page.evaluate("'axe' in window"):  # as it stays while only the view changes
            self.page.evaluate(axe)
        found = self.page.evaluate(_RULES)
        assert found == [], f"{what}: {found}"

    def check_width(self, what: str, size: str, axe: str) -> None:
        """The same as it would be seen on a screen of another size."""
        before = self.page.viewport_size
        assert before is not None
        width, height = SIZES[size]
        self.page.set_viewport_size({"width": width, "height": height})
        self.check(f"{what}-{size}", axe)
        self.page.set_viewport_size(before)

    def overflow(self) -> int:
        """How many pixels the page is wider than the screen."""
        return int(self.page.evaluate("document.documentElement.scrollWidth - innerWidth"))


def says(element: Locator, script: str) -> Any:
    """What a script says of an element in a frame; None while the frame gets another document."""
    try:
        return element.evaluate(script)
    except Error as error:
        if "Execution context was destroyed" in error.message:
            return None
        raise


_RULES = """async () => {
    const tags = ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa", "best-practice"];
    const options = { runOnly: tags, iframes: false };
    // What slides in is judged where it ends.
    await Promise.all(document.getAnimations().map((one) => one.finished.catch(() => {})));
    const found = await axe.run(document, options);
    return found.violations.map((one) => `${one.id}: ${one.nodes.map((node) => node.html)}`);
}"""

Browse = Callable[..., AbstractContextManager[Visit]]


@pytest.fixture(scope="session")
def axe() -> str:
    """The rules of accessibility, as a script."""
    return (node_modules(HERE) / "axe-core" / "axe.min.js").read_text("utf-8")


@pytest.fixture(scope="module")
def playwright() -> Iterator[Playwright]:
    """The driver; only while the module's tests run, because its event loop is this thread's."""
    with sync_playwright() as driver:
        yield driver


@pytest.fixture(scope="module")
def chromium(playwright: Playwright) -> Iterator[Browser]:
    """The program, for all who need no profile."""
    program = shutil.which("chromium-headless-shell") or _program()
    with closing(playwright.chromium.launch(executable_path=program, args=ARGUMENTS)) as browser:
        yield browser


@pytest.fixture
def browse(chromium: Browser) -> Browse:
    """Visit as somebody new: `with browse("phone", scheme="dark", locale="de-DE") as visit`."""

    @contextmanager
    def opened(
        size: str = "desktop", scheme: str = "light", locale: str | None = None
    ) -> Iterator[Visit]:
        context = chromium.new_context(**_looks(size, scheme, locale))
        with closing(context):
            yield Visit(context, context.new_page(), f"{size}-{scheme}")

    return opened


@pytest.fixture
def browse_at_home(playwright: Playwright, tmp_path: Path) -> Browse:
    """The same in a browser of its own with a profile on disk, as people have one.

    Without one, Chromium connects to nobody before it must, whatever mail asks for.
    """

    @contextmanager
    def opened(
        size: str = "desktop", scheme: str = "light", locale: str | None = None
    ) -> Iterator[Visit]:
        context = playwright.chromium.launch_persistent_context(
            tmp_path / "profile",
            executable_path=_program(),
            args=ARGUMENTS,
            **_looks(size, scheme, locale),
        )
        with closing(context):
            yield Visit(context, context.pages[0], f"{size}-{scheme}")

    return opened


def _program() -> str:
    found = shutil.which("chromium")
    if found is None:
        pytest.skip("Chromium is not installed")
    return found


def _looks(size: str, scheme: str, locale: str | None) -> dict[str, Any]:
    width, height = SIZES[size]
    viewport = {"width": width, "height": height}
    touch = size != "desktop"  # a finger is wider than a mouse's pointer
    return {"viewport": viewport, "color_scheme": scheme, "locale": locale, "has_touch": touch}
