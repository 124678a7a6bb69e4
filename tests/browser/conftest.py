"""A browser for tests: Debian's Chromium, each time as a user who never opened it before."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

import pytest
from playwright.sync_api import BrowserContext, Dialog, Page, Playwright, sync_playwright

from tests.npm import node_modules

HERE = Path(__file__).parent
ARTEFACTS = Path(__file__).parents[2] / "test-artefacts"
ARGUMENTS = [
    "--headless=new",
    "--no-sandbox",  # the tests may run as root, for whom Chromium has no sandbox
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]
SIZES = {"desktop": (1280, 900), "phone": (390, 844)}
TIMEOUT = 15_000  # ms; for whatever a test waits for


class Visit:
    """A page that is being looked at, and all that it did meanwhile."""

    def __init__(self, context: BrowserContext, name: str) -> None:
        self.context = context
        self.page: Page = context.pages[0]
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
        """Keep what is seen now; it must fit the screen and break no rule of accessibility."""
        self.screenshot(what)
        assert self.overflow() <= 0, what
        self.page.evaluate(axe)
        found = self.page.evaluate(_RULES)
        assert found == [], f"{what}: {found}"

    def overflow(self) -> int:
        """How many pixels the page is wider than the screen."""
        return int(self.page.evaluate("document.documentElement.scrollWidth - innerWidth"))


_RULES = """async () => {
    const tags = ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "best-practice"];
    const options = { runOnly: tags, iframes: false };
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


@pytest.fixture
def browse(playwright: Playwright, tmp_path_factory: pytest.TempPathFactory) -> Browse:
    """Open a browser: `with browse(size="phone", scheme="dark") as visit`."""
    program = shutil.which("chromium")
    if program is None:
        pytest.skip("Chromium is not installed")

    @contextmanager
    def opened(size: str = "desktop", scheme: str = "light") -> Iterator[Visit]:
        width, height = SIZES[size]
        context = playwright.chromium.launch_persistent_context(
            tmp_path_factory.mktemp("browser"),
            executable_path=program,
            args=ARGUMENTS,
            viewport={"width": width, "height": height},
            color_scheme="dark" if scheme == "dark" else "light",
        )
        context.set_default_timeout(TIMEOUT)
        try:
            yield Visit(context, f"{size}-{scheme}")
        finally:
            context.close()

    return opened
