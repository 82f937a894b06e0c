"""The source tree in CONTRIBUTING names every folder; CI and the decisions name what there is."""

import re
from pathlib import Path

import nextlong

CONTRIBUTING = Path(__file__).parents[1] / "CONTRIBUTING.md"
TREE = (
    CONTRIBUTING.read_text(encoding="utf-8")
    .split("## The tree\n\n")[1]
    .strip("\n")
    .split("\n")
)


def test_the_tree_fits_one_screen():
    assert len(TREE) <= 40
    assert max(map(len, TREE)) <= 120


def test_the_tree_has_every_folder_once():
    source = CONTRIBUTING.parent / "src" / "nextlong"
    folders = [f"{path.parent.name}/" for path in sorted(source.glob("*/__init__.py"))]
    assert sorted(
        re.findall(r"(?<![\w/])[a-z]+/(?=  )", "\n".join(TREE[1:-1]))
    ) == sorted(folders)


def test_ci_names_files_that_are_there():
    named = re.findall(
        r"tests/[\w/.]+\.(?:py|sh|txt)",
        (CONTRIBUTING.parent / ".ci" / "run").read_text(encoding="utf-8"),
    )
    assert len(named) > 5
    assert [path for path in named if not (CONTRIBUTING.parent / path).is_file()] == []


def test_every_decision_has_a_number_of_its_own():
    names = [
        path.name for path in (CONTRIBUTING.parent / "docs" / "decisions").glob("*.md")
    ]
    assert len({name[:4] for name in names}) == len(names) > 0


def test_the_changelog_has_the_version_of_the_package_first():
    text = (CONTRIBUTING.parent / "CHANGELOG.md").read_text(encoding="utf-8")
    versions = re.findall(
        r"^## \[([\w.]+)\](?: - (\d{4}-\d\d-\d\d))?$", text, re.MULTILINE
    )
    assert versions[0] == ("Unreleased", "")
    version, date = versions[1]
    assert (version, bool(date)) == (nextlong.__version__, True)
    kinds = re.findall(r"^### (.*)$", text, re.MULTILINE)
    assert set(kinds) <= {"Added", "Changed", "Deprecated", "Removed", "Fixed", "Security", "Upgrade notes"}  # fmt: skip
