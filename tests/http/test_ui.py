"""The page's own files: what they weigh, and what they say in which language."""

from __future__ import annotations

import ast
import itertools
import json
import re
import subprocess
from collections.abc import Iterable, Iterator
from pathlib import Path
from types import ModuleType

import pytest

import relay
from relay.checks import (
    author,
    dkim,
    dmarc,
    fields,
    published,
    signatures,
    spf,
    sts,
    tags,
    verdict,
)
from relay.checks.findings import GMAIL_CLIPS, find
from relay.dns import questions, resolver
from relay.http.description.openapi import SECTIONS, describe
from relay.http.probes import domain_checks, links
from relay.http.probes.links import unasked
from relay.http.problems.types import TYPES
from relay.http.resources import overview
from relay.http.resources.pages import Static, served
from relay.outbound.delivery import workers
from relay.outbound.mx import connections, dane, exchangers, sites, tlsa
from relay.outbound.mx import sts as sts_kept
from relay.outbound.pacing import held_back
from relay.settings import Settings, explain
from relay.smtp import client, connection, replies
from relay.smtp.chaos import Chaos, Rate
from relay.storage import Space
from tests.http.refusals import is_known, refusals

UI = Path(relay.__file__).parent / "http" / "ui"
TABLES = sorted(UI.glob("strings.??.js"))
"""What the page says in each language."""
PARTS = sorted(UI.glob("strings.??.*.js"))
"""What the relay says, which only those views load that show it."""
SPOKEN = UI / "spoken.js"
"""How that is found in a table, which only those load who read one."""
MODULES = sorted(set(UI.glob("*.js")) - {*TABLES, *PARTS})

T = re.compile(r'\bt\(\s*(?:("(?:[^"\\]|\\.)*")|(\S))')

SEEN = re.compile(
    r"(?:\b(?:text|title|placeholder|label|none|says|does|ariaLabel|ariaDescription)(?:: | = )"
    r'|"aria-label": |textContent = |\b(?:button|confirm|copying)\(|\bsay\([\w.]+, )$'
)
"""What stands before a text that is seen."""
PROSE = re.compile(r"[A-Za-z]{2,}[,.:;]? [A-Za-z]{2,}")
CODE = re.compile(
    r"(?:class(?:Name)?(?:: | = )|rel: |import |from |querySelector(?:All)?\(|closest\(|matches\("
    r"|encodeURIComponent\(|setAttribute\(\"\w+\", |\b(?:mail|rcpt): )$"
)
"""What stands before a literal of several words that is for the browser, or SMTP's."""
PASTED = re.compile(
    r"^const (?:SNIPPETS|COMMANDS) = \{\n.*?^\};\n|\"relay open\"", re.MULTILINE | re.DOTALL
)
"""What is to be pasted elsewhere."""
NOT_SAID = {
    "client.js": "what it says is said to programs; calls.js says it to people",
    "secrets.js": "it shows nothing",
    "spoken.js": "what it says is what it is given",
}


def table(path: Path) -> dict[str, str]:
    """What a table of a language has: JSON between its head and its last semicolon."""
    source = path.read_text("utf-8")
    return dict(json.loads(source[source.index("{") : source.rindex("}") + 1]))


def said() -> dict[str, str]:
    """Every text that a module says by `t`, and which module it is."""
    return {
        json.loads(text): path.name
        for path in MODULES
        for text, _ in T.findall(path.read_text("utf-8"))
        if text
    }


def concerns() -> set[str]:
    """What `relay.http.resources.overview` says that a person should look at, as keys of a table;
    what others have worded is not among it."""

    def spelt(node: ast.expr) -> list[str]:
        match node:
            case ast.Constant():
                return [str(node.value)]
            case ast.JoinedStr():
                return ["".join(parts) for parts in itertools.product(*map(spelt, node.values))]
            case ast.FormattedValue(value=ast.Call(func=ast.Name("_count"), args=[_, *nouns])):
                words = [ast.literal_eval(noun) for noun in nouns]
                return [
                    f"# {word}" for word in (words if words[1:] else [words[0], words[0] + "s"])
                ]
            case ast.FormattedValue(value=ast.Call(func=ast.Name("_for"))):
                return ["# seconds", "# minutes", "# hours"]
        return ["#"]

    tree = ast.parse(Path(overview.__file__).read_text("utf-8"))
    found = {
        text
        for call in ast.walk(tree)
        if isinstance(call, ast.Call) and isinstance(call.func, ast.Name)
        if call.func.id == "_concern"
        for text in spelt(call.args[1])
    }
    assert len(found) > 10
    return {
        "".join(f"{piece}{{{at}}}" for at, piece in enumerate(pieces[:-1])) + pieces[-1]
        for pieces in (text.split("#") for text in found - {"#."})
    }


def numbered(text: str) -> str:
    """A sentence of the relay's as the key of a table: its numbers are places."""
    count = itertools.count()
    return re.sub(r"\d+", lambda _: f"{{{next(count)}}}", text)


def worded() -> set[str]:
    """What else the relay words for people: problems' titles, the reference's sections, notices."""
    space = Space()
    space.tell((0, 1, True))
    chaos = Chaos({"rcpt": Rate(451, 0.5)}).notice
    assert space.notice
    assert chaos
    return {
        *(kind.title for kind in TYPES.values()),
        *(text for section in SECTIONS.values() for text in section),
        numbered(describe((), "")["info"]["description"]),
        numbered(f"{space.notice[0].upper()}{space.notice[1:]}."),
        numbered(chaos.partition(": ")[0]),
    }


def mended() -> set[str]:
    """What the checks of a message find, as keys of a table."""
    images = "<img src='https://cdn.example/a.png'>"
    long = images + "x" * GMAIL_CLIPS + "<video></video>"
    one_click = [("List-Unsubscribe", "<mailto:no@client.example>")]
    every = [*find([], None, long), *find(one_click, "t", None), unasked(3, 20)]
    of_support = [one for one in every if one.id.startswith("support-")]
    assert all(re.fullmatch(r".+: ignored by .+\.", one.text) for one in of_support)
    found = {one.id: one.text for one in every if one not in of_support}
    assert of_support
    assert len(found) == 9
    return set(map(numbered, found.values()))


VERDICTS = [
    *(spf, dkim, dmarc, signatures, author, tags, verdict, fields),
    *(resolver, questions, links),
]
"""What words the reasons of a check."""
PIECES = {"{0}: ignored by {1}.", "-{0} {1} is {2}", "is no domain name"}
"""Of `relay.checks.findings`, which `mended` tells, and of `relay.addresses`."""
FAILURES = [
    held_back, workers, exchangers, sites, sts_kept, dane, tlsa, connections, client, connection,
    replies,
]  # fmt: skip
"""What words why a message of the queue failed or waits."""
BUGS = {
    "<Mail of {0} bytes to {1} recipients>", "Reply({0}, {1})", "Connections to upstreams.",
    "TLS was established when nobody had asked for it", "a group without a mail",
    "a mail was begun on a connection that is not ready for one", "a result without a mail",
    "an outcome without a mail", "a mail is sent that was let go",
    "no outcome follows from {0} at {1}",
    "the name to greet with holds what no host name can hold",
    "The CA file {0} cannot be read: {1}.", "a port is a number from 1 to 65535",
    "credentials need a server that is known", "the connection was closed by `abort`",
    "nothing at all matches, too", " and {0} more", "its policy",
    "Policies of MTA-STS that were asked for: fetched or failed.",
    "version: STSv1", "mode: {0}", "max_age: {0}", "mx: {0}",  # of a policy that is reported
    "Exchangers of signed domains that were looked at for TLSA records: found, unusable (none of "
    "them can be used), none, or failed (the DNS did not say).",
    "Whether the DNS servers have proved that they validate, without which there is no DANE.",
    "it ends too soon", "a length of no kind",
}  # fmt: skip
"""Of these, what no message is said to have failed for: bugs, settings, and names of things."""
NAMES = {
    "active", "provisioned", "suspended", "activation",
    "queued", "held", "sent", "failed", "bounced", "cancelled", "high", "normal", "bulk",
    "retry", "hold", "cancel", "restart", "pause", "resume", "sweep", "report",
    "starting", "running", "paused", "draining", "stopped", "error", "warning", "note",
    "manual", "complained", "delayed", "unsubscribed", "default", "file", "environment",
}  # fmt: skip
"""What the relay names by a word that the page says as it stands: states, verbs, kinds."""
RECORDS = {
    "MTA-STS policy", "id={0}", "max_age: {0}", "mode: testing", "mx: {0}", "p=none",
    "rua=mailto:{0}", "version: STSv1",
}  # fmt: skip
"""Of `relay.checks.published`, what stands in records."""
NO_REASON = re.compile(r"v=spf1|Relay \(do the links")


def reasons(module: ModuleType) -> set[str]:
    """Every text of a module with a blank in it that is not about its code: what it says to
    people, as keys of a table; what a number or a quotation is put in is a place."""
    tree = ast.parse(Path(str(module.__file__)).read_text("utf-8"))
    about = {id(one.value) for one in ast.walk(tree) if isinstance(one, ast.Expr)}
    pieces = {
        id(value)
        for one in ast.walk(tree)
        if isinstance(one, ast.JoinedStr)
        for value in one.values
        if isinstance(value, ast.Constant)
    }
    found = set()
    for node in ast.walk(tree):
        if id(node) in about | pieces:
            continue
        match node:
            case ast.Constant(value=str(text)):
                pass
            case ast.JoinedStr():
                count = itertools.count()
                text = "".join(
                    str(value.value) if isinstance(value, ast.Constant) else f"{{{next(count)}}}"
                    for value in node.values
                )
            case _:
                continue
        if " " in text.strip() and re.search("[a-z]{2}", text) and not NO_REASON.search(text):
            found |= {piece for piece in text.split("; ") if re.search("[a-z]{2}", piece)}
    assert found, module.__name__
    return {renumbered(text) for text in found}


def renumbered(text: str) -> str:
    """The same with its places counted from 0."""
    count = itertools.count()
    return re.sub(r"\{\d\}", lambda _: f"{{{next(count)}}}", text)


def meanings() -> set[str]:
    """What every setting is for."""
    return {one.meaning for one in explain(Settings(), {})}


def parts() -> dict[str, set[str]]:
    """What the relay says that is not in the tables, by the last name of the file that has it."""
    verdicts = set().union(*map(reasons, VERDICTS))
    problems = {text for kind in TYPES.values() for text in (kind.when, kind.remedy)}
    failures, records = (
        set().union(*map(reasons, modules))
        for modules in (FAILURES, [published, sts, domain_checks])
    )
    assert failures >= BUGS
    assert records >= RECORDS
    checks = verdicts | mended() | PIECES
    return {
        "checks": checks,
        "domains": records - RECORDS - checks,  # whoever sees these has learnt those
        "problems": problems,
        "refusals": set(refusals()),
        "queue": failures - BUGS | {"no answer", "suppressed"},  # the gatekeeper's, SQL's
        "settings": meanings(),
    }


DESCRIBED = {"calls", "answers"}
"""The parts with what /openapi.json says, which `tests.http.test_openapi` compares with it."""


def literals(source: str) -> Iterator[tuple[str, str]]:
    """Yield each string of a module, in which `${…}` is `{}`, with the code before it."""
    at, start = 0, 0
    while at < len(source):
        one = source[at]
        if source.startswith("//", at):
            at = source.find("\n", at) % (len(source) + 1)
            start = at
        elif one == '"':
            match = re.compile(r'"((?:[^"\\\n]|\\.)*)"').match(source, at)
            if match is None:  # within a regular expression
                at += 1
                continue
            yield match[1], source[start:at][-80:]
            at = match.end()
        elif one == "`":
            text, depth, end = "", 0, at + 1
            while source[end] != "`" or depth:
                if source.startswith("${", end):
                    depth += 1
                    text += "{" if depth == 1 else ""
                elif source[end] == "{" and depth and source[end - 1] != "$":
                    depth += 1
                elif source[end] == "}" and depth:
                    depth -= 1
                    text += "}" if not depth else ""
                elif not depth:
                    text += source[end]
                end += 1
            yield text, source[start:at][-80:]
            at = end + 1
        else:
            at += 1


def weight(paths: Iterable[Path]) -> tuple[int, int]:
    """The bytes that files are on their way to a browser which takes gzip, and unpacked."""
    contents = [served(path) for path in paths]
    return sum(len(Static(content, "").packed) for content in contents), sum(map(len, contents))


READ = """
import { pathToFileURL } from "node:url";
const read = async (path) => (await import(pathToFileURL(path))).default;
for (const [tree, served] of JSON.parse(process.argv[1])) {
  const [one, two] = [JSON.stringify(await read(tree)), JSON.stringify(await read(served))];
  if (!one || one !== two) throw Error(`${tree} is not what is served`);
}
"""


def test_languages_say_the_same_as_in_the_tree(tmp_path: Path):
    """What is read of a table that was made smaller is what stands in the file, in its order."""
    pairs = []
    for path in (*TABLES, *PARTS):
        tree, smaller = tmp_path / f"{path.stem}.mjs", tmp_path / f"{path.stem}.served.mjs"
        tree.write_bytes(path.read_bytes())
        smaller.write_bytes(served(path))
        pairs.append([str(tree), str(smaller)])
    command = ["node", "--input-type=module", "--eval", READ, json.dumps(pairs)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def selectors(style: str) -> list[str]:
    """What stands before each block of a style, with blanks only where they mean something."""
    found = re.findall(r"[^{};]*(?={)", re.sub(r"/\*.*?\*/", "", style, flags=re.DOTALL))
    spaced = (" ".join(one.split()) for one in found)
    return [re.sub(r" ?([,>+~]) ?", r"\1", one) for one in spaced if one[:1] not in "@"]


def test_the_style_means_the_same_as_in_the_tree():
    """The minifier takes ` :` within a nested rule for a declaration's: `*:` is the same."""
    path = UI / "style.css"
    assert selectors(served(path).decode()) == selectors(path.read_text("utf-8"))


def test_the_page_weighs_little():
    """All that a browser loads which reads English, packed and unpacked, with `/docs`, a page of
    its own.  The table of another language comes beside it, to those who read that, and of its
    parts those that the view shows which is open: on their way, all views of the page are within
    120 kB for them, too."""
    docs = set(UI.glob("docs.*"))
    page = set(UI.iterdir()) - {*TABLES, *PARTS, *docs, SPOKEN}
    packed, unpacked = weight(page)
    assert packed < 80_000
    assert unpacked + weight(docs)[1] < 200_000
    for path in (*TABLES, *PARTS):
        assert weight([path])[0] < 15_000
    for path in TABLES:
        parts = {one for one in PARTS if one.name.startswith(f"{path.stem}.")}
        of_docs = {one for one in parts if one.name.split(".")[2] in {*DESCRIBED, "problems"}}
        assert weight(page | {SPOKEN, path, *parts} - of_docs)[0] < 120_000


@pytest.mark.parametrize("path", TABLES, ids=lambda path: path.name)
def test_a_language_is_complete(path: Path):
    """Its table has each text that a module says, with the same values in it, and no other but
    what the relay words."""
    words = table(path)
    wanted = said() | dict.fromkeys(concerns() | worded() | NAMES, "the relay")
    compare(words, wanted)


@pytest.mark.parametrize("path", PARTS, ids=lambda path: path.name)
def test_a_part_of_a_language_is_complete(path: Path):
    """Each setting, problem, finding and reason of a check is said in it, and no other text."""
    part = path.name.split(".")[2]
    if part not in DESCRIBED:
        compare(table(path), dict.fromkeys(parts()[part], "the relay"))


@pytest.mark.parametrize("case", TYPES)
def test_each_type_of_problem_is_said_in_each_language(case: str):
    """The sentence that it is shown with is one that the relay says, and so in the tables."""
    assert is_known(TYPES[case].detail)


def test_each_language_has_each_part():
    """There is no text of the relay's that only one language has."""
    codes = [path.name.split(".")[1] for path in TABLES]
    wanted = {f"strings.{code}.{part}.js" for code in codes for part in {*parts(), *DESCRIBED}}
    assert {path.name for path in PARTS} == wanted


def compare(words: dict[str, str], wanted: dict[str, str]) -> None:
    """A table has what is wanted (a text, and who says it), with the same values, and no more."""
    assert {text: wanted[text] for text in wanted.keys() - words.keys()} == {}
    assert words.keys() - wanted.keys() == set()
    for text, other in words.items():
        assert sorted(re.findall(r"\{\d\}", text)) == sorted(re.findall(r"\{\d\}", other)), text
        assert other.strip()
        assert text.endswith(" ") == other.endswith(" "), text


@pytest.mark.parametrize("path", MODULES, ids=lambda path: path.name)
def test_what_is_seen_is_said_by_t(path: Path):
    """No text that people see or hear stands in a module but as a literal that `t` is given."""
    if path.name in NOT_SAID:
        return
    source = PASTED.sub("", path.read_text("utf-8"))
    for _, other in T.findall(source):
        assert path.name == "strings.js" or not other, "t() is given what no test can read"
    bare = []
    for text, before in literals(source):
        if re.search(r"\bt\(\s*$", before) or not re.search(r"[A-Za-z]{2,}", text):
            continue
        if SEEN.search(before) or (PROSE.search(text) and not CODE.search(before)):
            bare.append(text)
    assert bare == []


@pytest.mark.parametrize("path", MODULES, ids=lambda path: path.name)
def test_nothing_is_found_by_a_text_that_is_translated(path: Path):
    """A selector that holds in English alone finds nothing in German."""
    named = re.compile(r"\[(aria-label|title|placeholder|alt)\W")
    selectors = [text for text, before in literals(path.read_text("utf-8")) if named.search(text)]
    assert selectors == []


def test_no_text_stands_in_the_style():
    """What a rule puts on the page is drawn, or comes from an attribute that a module filled."""
    style = (UI / "style.css").read_text("utf-8")
    shown = re.findall(r"\bcontent: ([^;}]*)", style)
    assert len(shown) > 5
    assert not any(re.search(r'"[^"]*[A-Za-z]{2}[^"]*"', value) for value in shown)
