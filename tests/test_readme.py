"""The README's Python is run as it stands."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

README = Path(__file__).parents[1] / "README.md"
BLOCKS = re.findall(r"```python\n(.*?)```", README.read_text(encoding="utf-8"), flags=re.DOTALL)


def test_readme_has_examples():
    assert len(BLOCKS) == 3


@pytest.mark.parametrize(
    "block",
    [pytest.param(BLOCKS[0], marks=pytest.mark.heavy), *BLOCKS[1:]],  # the first needs datasets and torch
    ids=["synthesize", "pipeline", "algorithms"],
)
def test_example_runs(block, tmp_path):
    (tmp_path / "example.py").write_text(block, encoding="utf-8")
    done = subprocess.run([sys.executable, "-W", "error", "example.py"], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    if "nextlong.run(" in block:
        assert re.fullmatch(r"(nextlong-[0-9a-f]{16} meta python-\S+ .*\n(.*\n)*?)+", done.stdout)


def test_every_path_in_the_readme_exists():
    text = README.read_text(encoding="utf-8")
    for path in re.findall(r"\]\((?!http)([^)#]+)\)", text):
        assert (README.parent / path).exists(), path


TREE = README.read_text(encoding="utf-8").split("## The tree\n\n")[1].split("\n\n")[0].split("\n")


def test_the_tree_fits_one_screen():
    assert len(TREE) <= 40
    assert max(map(len, TREE)) <= 120


def test_the_tree_has_every_folder_once():
    source = README.parent / "src" / "nextlong"
    folders = [f"{path.parent.name}/" for path in sorted(source.glob("*/__init__.py"))]
    assert sorted(re.findall(r"(?<![\w/])[a-z]+/(?=  )", "\n".join(TREE[1:-1]))) == sorted(folders)
