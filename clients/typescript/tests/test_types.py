"""What a strict project says to the types, and whether these are still the relay's.

Sources and tests themselves are checked by `make check`.
"""

from __future__ import annotations

import re
from pathlib import Path

import httpx
from conftest import HERE, Run
from readme import PROGRAMS
from relay_client import Relay


def test_the_packed_types_suit_a_strict_project(run: Run, modules: Path, project: Path) -> None:
    """The README's programs, as ES modules and as CommonJS; its own declarations are checked."""
    folder = project / "types"
    folder.mkdir()
    names = ["client", "playwright", "vitest"]
    for name in names:
        (folder / f"{name}.mts").write_text(PROGRAMS[name])
    (folder / "shop.d.ts").write_text("export const resetPassword: (to: string) => Promise<void>;")
    (folder / "common.cts").write_text(
        'import { Relay, type Inbox } from "relay-client";\n'
        'import { test } from "relay-client/playwright";\n'
        "export const made: Promise<Inbox> = new Relay().inbox({ ttl: 5 });\n"
        "test('x', async ({ inbox }) => { const sent: string = inbox.address; void sent; });\n"
    )
    (folder / "cypress.mts").write_text(
        'import "relay-client/cypress";\n'
        "declare const cy: Cypress.Chainable;\n"
        "cy.relayInbox({ ttl: 5 });\n"
        'cy.waitForMail({ subject: "Reset", timeout: 1000 });\n'
    )
    strict = ("--strict", "--noEmit", "--noUncheckedIndexedAccess", "--types", "node")
    to = ("--target", "es2022", "--module", "nodenext")
    tsc = (modules / ".bin" / "tsc", *strict, *to)
    alone = ("client.mts", "cypress.mts")  # without the DOM's types, and with all declarations
    run(*tsc, "--lib", "es2022", "--skipLibCheck", "false", *alone, folder=folder)
    # With what the runners' own declarations have against such a compiler left out.
    runners = ("playwright.mts", "vitest.mts", "common.cts")
    said = run(
        *(*tsc, "--lib", "es2022,dom", "--skipLibCheck", "false", *runners),
        folder=folder,
        fails=True,
    ).stdout
    theirs = re.compile(r"\S*node_modules/(?!relay-client/)| ")
    assert [line for line in said.splitlines() if not theirs.match(line)] == []


_GENERATES = """
import openapiTS, { astToString } from "openapi-typescript";

process.stdout.write(astToString(await openapiTS(new URL(process.argv[1]))));
"""


def test_a_generator_has_nothing_to_say_of_the_whole_document(
    run: Run, relay: Relay, modules: Path, tmp_path: Path
) -> None:
    """openapi-typescript, as it comes: all calls, neither error nor warning, and types that a
    strict project compiles."""
    document = f"{relay.url}/openapi.json"
    made = run("node", "--input-type=module", "--eval", _GENERATES, document)
    assert made.stderr == ""
    paths = httpx.get(document, trust_env=False).json()["paths"]
    names = [call["operationId"] for path in paths.values() for call in path.values()]
    assert len(names) > 90
    for name in names:
        assert re.search(rf"^    {name}: \{{$", made.stdout, re.MULTILINE), name
    (tmp_path / "schema.ts").write_text(made.stdout)
    run(modules / ".bin" / "tsc", "--strict", "--noEmit", "schema.ts", folder=tmp_path)


def test_the_schema_is_the_relays(run: Run, relay: Relay) -> None:
    """What is committed is what scripts/schema.mjs makes of this relay."""
    made = run("node", "scripts/schema.mjs", relay.url).stdout
    assert made == (HERE / "src" / "schema.ts").read_text("utf-8"), (
        "the relay's calls have changed: node scripts/schema.mjs RELAY_URL > src/schema.ts"
    )
