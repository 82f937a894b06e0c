"""Installing: what a page says, what the repository is called, and what a failure says."""

import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


def test_the_readme_names_the_repository_of_the_package():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    readme = (ROOT / "README.md").read_text("utf-8")
    cloned = re.findall(r"git clone (\S+)", readme)
    assert cloned == [project["urls"]["Repository"]]
    # Whoever only wants to use it needs no clone.
    assert readme.index("pip install nextlong") < readme.index("git clone")
    assert readme.index("uvx nextlong demo") < readme.index("git clone")


def test_every_extra_that_a_page_names_is_one():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    known = set(project["optional-dependencies"])
    pages = [ROOT / "README.md", *(ROOT / "docs").rglob("*.md")]
    named = {
        extra
        for page in pages
        for extras in re.findall(
            r"install '?(?:-e ')?(?:nextlong|\.)\[([\w,-]+)\]", page.read_text("utf-8")
        )
        for extra in extras.split(",")
    }
    assert named
    assert named <= known


def test_every_environment_of_ci_is_installed_with_pins():
    text = (ROOT / ".ci" / "run").read_text("utf-8")
    by_hand = re.findall(r"^.*\bpip\"? install\b.*$", text, re.MULTILINE)
    # One names its version, for a Python that its package does not list.
    assert [
        line for line in by_hand if "--no-deps" not in line or "==" not in line
    ] == []
    for file in re.findall(r"pinned \S+ (\S+\.txt)", text):
        lines = (ROOT / file).read_text("utf-8").splitlines()
        requirements = [line for line in lines if line and not line.startswith("#")]
        assert requirements
        assert [line for line in requirements if "==" not in line] == []


@pytest.mark.parametrize("installer", ["pip", "uv"])
def test_an_installer_that_fails_says_why(tmp_path, installer, monkeypatch):
    if installer == "uv":
        # It stands for uv, which need not be installed here.
        uv = tmp_path / "uv"
        uv.write_text('#!/bin/sh\necho "because of nothing-at-all: $*"\nexit 1\n')
        uv.chmod(0o755)
        monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    else:
        monkeypatch.setenv("PATH", "/usr/bin:/bin")
    install = [ROOT / ".ci" / "install", sys.prefix, "--no-index", "nothing-at-all"]
    done = subprocess.run(install, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 1
    assert done.stdout == ""
    words, failed = done.stderr.rstrip("\n").rsplit("\n", 1)
    assert "nothing-at-all" in words
    assert failed.startswith("failed: uv pip" if installer == "uv" else "failed: ")
    assert failed.endswith("--constraint constraints.txt --no-index nothing-at-all")


def test_an_installer_that_succeeds_says_nothing(tmp_path, monkeypatch):
    uv = tmp_path / "uv"
    uv.write_text('#!/bin/sh\necho "$*" > "$WORDS"\n')
    uv.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    monkeypatch.setenv("WORDS", str(tmp_path / "words"))
    monkeypatch.setenv("CONSTRAINTS", "others.txt")
    install = [ROOT / ".ci" / "install", "env", "--editable", "."]
    done = subprocess.run(install, cwd=ROOT, capture_output=True, text=True)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    words = (tmp_path / "words").read_text()
    assert words == (
        "pip install --python env/bin/python --constraint others.txt --editable .\n"
    )
