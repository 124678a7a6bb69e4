"""The supervisor stands alone: it could be lifted out of this repository."""

import ast
import sys
import textwrap
from pathlib import Path
from typing import Any

import trio

import supervisor
from tests.eventually import eventually


def test_it_imports_trio_and_the_standard_library_only():
    """Nothing of ours and no other package: the engine knows no relay."""
    tree = ast.parse(Path(supervisor.__file__).read_text())
    imported = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            imported |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0
            imported.add(str(node.module).partition(".")[0])
    assert imported - set(sys.stdlib_module_names) == {"trio"}


def test_what_it_exports_is_all_that_has_a_public_name():
    """`__all__` leaves nothing out, and what is in it is of this module."""
    tree = ast.parse(Path(supervisor.__file__).read_text())
    made: set[str] = set()
    for node in tree.body:
        if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            made.add(node.name)
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            made.add(node.target.id)
    assert sorted(name for name in made if not name.startswith("_")) == sorted(supervisor.__all__)


def test_nobody_reaches_into_it():
    """Outside it, no private name of its classes and functions is used."""
    root = Path(supervisor.__file__).parent
    private = {name for name in vars(supervisor) if name.startswith("_")} - set(vars(ast))
    for file in (*root.glob("actors/*.py"), *root.glob("relay/**/*.py")):
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.ImportFrom) and node.module == "supervisor":
                used = {alias.name for alias in node.names}
                assert used <= set(supervisor.__all__), file
            elif isinstance(node, ast.Attribute) and ast.unparse(node.value) == "supervisor":
                assert node.attr not in private, file


async def test_the_example_in_its_header_works(mock_clock):
    """It is run as it stands there: the guest who is nobody is dropped, the others are greeted."""
    header = str(supervisor.__doc__)
    example = textwrap.dedent(header.partition("EXAMPLE\n")[2].partition("\nPROMISES\n")[0])
    mock_clock.rate = 100.0  # the actor that fails is started again after a moment
    names: dict[str, Any] = {}
    exec(compile(example, "example", "exec"), names)
    boss = supervisor.Supervisor(blocked_after=None)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(boss.run, names["house"])
        await eventually(
            lambda: names["said"],
            "those who have a name are greeted",
            until=lambda said: said == ["hello ann", "hello bob"],
        )
        boss.shutdown()
