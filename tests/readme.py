"""The README's tables that are written from the program: `make readme` writes them again
(and wraps what grew too long).

Commands, exit codes, settings and metrics stand between `<!-- name -->` and `<!-- /name -->`; what
stands there is what this module makes of the commands, of `relay.cli.exits`, of
`config/relay.toml` and of a running relay's `/metrics`.  `tests/test_readme.py` compares.
"""

from __future__ import annotations

import importlib
import pkgutil
import re
import tempfile
import textwrap
from collections.abc import Iterator
from pathlib import Path

import click
import httpx

import actors
import relay
from relay.cli import cli, exits
from relay.metrics import registry
from relay.settings import as_environment, known_names
from tests.relay_process import RelayProcess

ROOT = Path(__file__).parents[1]
README = ROOT / "README.md"
WIDTH = 100
# Options of so many commands that the table would be about them.
EVERYWHERE = {"--data-dir", "--config", "--json", "--token", "--limit", "--all"}
_SAMPLE = re.compile(r"^(\w+)\{([^}]*)\}", re.MULTILINE)


def commands() -> str:
    """Every command, its arguments and options, and what it does."""
    lines = ["| command | does |", "|---|---|"]
    for name, command in _leaves(cli):
        words = [f"relay {name}"]
        for parameter in command.params:
            if isinstance(parameter, click.Argument):
                words.append(str(parameter.make_metavar(click.Context(command))))
        options = [
            _spelt(parameter, command)
            for parameter in command.params
            if isinstance(parameter, click.Option) and not EVERYWHERE & set(parameter.opts)
        ]
        text = _cell(" ".join([*words, *options]))
        lines.append(f"| `{text}` | {_cell(command.get_short_help_str(200))} |")
    return "\n".join(lines)


def _leaves(group: click.Group, path: str = "") -> Iterator[tuple[str, click.Command]]:
    for name, command in group.commands.items():
        if isinstance(command, click.Group):
            yield from _leaves(command, f"{path}{name} ")
        else:
            yield path + name, command


def _spelt(option: click.Option, command: click.Command) -> str:
    longest = max(option.opts, key=len)
    value = "" if option.is_flag else " " + option.make_metavar(click.Context(command))
    return longest + value if option.required else f"[{longest}{value}]"


def exit_codes() -> str:
    """Every exit code and its meaning."""
    text = " ".join(exits.HELP.removeprefix("Exit codes:").split()).rstrip(".")
    rows = [part.strip().split(" ", 1) for part in text.split(";")]
    return "\n".join(
        ["| code | means |", "|---|---|", *(f"| {code} | {means} |" for code, means in rows)]
    )


def settings() -> str:
    """Every setting as a variable, with the default and the comment of `config/relay.toml`."""
    written = dict(_written((ROOT / "config/relay.toml").read_text()))
    lines = ["| setting | default | meaning |", "|---|---|---|"]
    for name in known_names():
        default, remark = written[name]
        shown = f"`{default}`" if default else ""
        lines.append(f"| `{as_environment(name)}` | {_cell(shown)} | {_cell(remark)} |")
    return "\n".join(lines)


def _written(text: str) -> Iterator[tuple[str, tuple[str, str]]]:
    """Yield each setting with its default, empty where it is none, and the comment above it.

    A comment above several is said once.
    """
    section = ""
    comment: list[str] = []
    for line in text.splitlines():
        if match := re.fullmatch(r"\[(\w+)\]", line):
            section, comment = f"{match[1]}.", []
        elif match := re.match(r"(# )?(\w+) = (.*)", line):
            default = "" if match[1] else match[3].strip('"')
            yield section + match[2], (default, " ".join(comment) or "likewise")
            comment = []
        elif line.startswith("#"):
            comment.append(line[1:].strip())
        else:
            comment = []


def metrics(page: str) -> str:
    """Every metric of the relay, its kind and labels, and what it counts."""
    for package in (actors, relay):  # what is counted must have been defined
        for module in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
            if not module.name.endswith("__main__"):
                importlib.import_module(module.name)
    labels = {
        getattr(collector, "_name", ""): list(getattr(collector, "_labelnames", ()))
        for collector in list(registry._collector_to_names)
    }
    for name, pairs in _SAMPLE.findall(page):
        labels.setdefault(name, [pair.split("=")[0] for pair in pairs.split(",")])
    lines = ["| metric | kind | what |", "|---|---|---|"]
    for name, kind, text in sorted(_families(page)):
        of = labels.get(name.removesuffix("_total"), labels.get(name, []))
        braces = f"`{{{','.join(of)}}}`" if of else ""
        lines.append(f"| `{name}` {braces} | {kind} | {_cell(text)} |".replace("  ", " "))
    return "\n".join(lines)


def _families(page: str) -> Iterator[tuple[str, str, str]]:
    texts = dict(re.findall(r"^# HELP (relay_\w+) (.*)$", page, re.MULTILINE))
    for name, kind in re.findall(r"^# TYPE (relay_\w+) (\w+)$", page, re.MULTILINE):
        yield name, kind, texts[name]


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")


def scrape(relay: RelayProcess) -> str:
    """Return the metrics page of a running relay."""
    answer = httpx.get(f"{relay.run['http']}/metrics", timeout=30, trust_env=False)
    return answer.raise_for_status().text


def tables(page: str) -> dict[str, str]:
    """Return every table by its name; `page` is a relay's `/metrics`."""
    return {
        "commands": commands(),
        "exit codes": exit_codes(),
        "settings": settings(),
        "metrics": metrics(page),
    }


def section(text: str, name: str) -> str:
    """Return what stands in the README between the marks of `name`."""
    return text.partition(f"<!-- {name} -->\n")[2].partition(f"\n<!-- /{name} -->")[0]


def wrapped(text: str) -> str:
    """Return the README with every paragraph that has too long a line wrapped anew."""
    done: list[str] = []
    block: list[str] = []
    code = False

    def close() -> None:
        if any(len(line) > WIDTH and "](" not in line for line in block):
            indent = "  " if block[0].startswith("- ") else ""
            whole = " ".join(line.strip() for line in block)
            done.extend(
                textwrap.wrap(
                    whole,
                    WIDTH,
                    subsequent_indent=indent,
                    break_long_words=False,
                    break_on_hyphens=False,
                )
            )
        else:
            done.extend(block)
        block.clear()

    for line in text.split("\n"):
        fence = line.startswith("```")
        if code or fence or not line.strip() or line.startswith(("|", "<!--", "#")):
            close()
            done.append(line)
            code ^= fence
        else:
            if line.startswith("- "):
                close()
            block.append(line)
    close()
    return "\n".join(done)


def main() -> None:
    """Write the tables into the README."""
    with (
        tempfile.TemporaryDirectory(prefix="relay-readme-") as folder,
        RelayProcess(Path(folder) / "data") as process,
    ):
        page = scrape(process)
    text = README.read_text()
    for name, table in tables(page).items():
        head, mark, rest = text.partition(f"<!-- {name} -->\n")
        assert mark, f"README.md has no <!-- {name} -->"
        text = head + mark + table + "\n" + rest[rest.index(f"<!-- /{name} -->") :]
    README.write_text(wrapped(text))


if __name__ == "__main__":
    main()
