"""The pages for trainers: their code compiles, their settings parse, and what can run without the trainer runs."""

import re
import shlex
from pathlib import Path

import pytest
import yaml

from nextlong.cli import main

PAGES = sorted((Path(__file__).parents[1] / "docs" / "train").glob("*.md"))
NAMES = [page.stem for page in PAGES]
EXPORTS = [
    line.strip()
    for page in PAGES
    for line in page.read_text("utf-8").splitlines()
    if line.startswith("    nextlong export")
]


def blocks(page, language):
    return re.findall(
        rf"```{language}\n(.*?)```", page.read_text(encoding="utf-8"), flags=re.DOTALL
    )


def test_every_trainer_has_a_page():
    assert NAMES == [
        "axolotl",
        "megatron",
        "nextlong",
        "olmo",
        "prolong",
        "torchtitan",
        "trl",
    ]


@pytest.mark.parametrize("page", PAGES, ids=NAMES)
def test_blocks_are_well_formed(page):
    python, settings, shell = (
        blocks(page, language) for language in ("python", "yaml", "sh")
    )
    assert python + settings + shell
    for block in python:
        compile(block, page.name, "exec")
    for block in settings:
        assert isinstance(yaml.safe_load(block), dict)


@pytest.mark.parametrize("line", EXPORTS)
def test_every_export_they_name_can_be_made(line, own_run, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    line = line.replace("RUN", str(own_run)).replace(
        "validation=0.01", "validation=0.4"
    )  # there are but 12 sequences
    arguments = shlex.split(line, comments=True)[1:]
    assert main.main([*arguments, "--set", "workers=1"]) == 0
    into = tmp_path / arguments[arguments.index("--into") + 1]
    split = "train/" if "validation" in line else ""
    assert list(into.glob(f"{split}*.*"))
