"""The supervisor stands alone: it could be lifted out of this repository."""

import ast
import sys
from pathlib import Path

import supervisor


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
