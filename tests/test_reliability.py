"""The table of faults: every row names a test, and the test is there."""

import ast
import re
from pathlib import Path

ROOT = Path(__file__).parent.parent
PAGE = ROOT / "docs/reliability.md"


def test_every_fault_names_a_test_that_is_there():
    rows = [
        line
        for line in PAGE.read_text(encoding="utf-8").splitlines()
        if line.startswith("| ")
    ][1:]
    assert len(rows) > 15
    for row in rows:
        path, name = re.search(r"`(tests/\S+\.py)::(\w+)` \|$", row).groups()
        tree = ast.parse((ROOT / path).read_text(encoding="utf-8"))
        assert name in {
            node.name for node in tree.body if isinstance(node, ast.FunctionDef)
        }, row
