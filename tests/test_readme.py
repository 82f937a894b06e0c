"""The README's Python and commands are run as they stand."""

import json
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from statistics import fmean

import pytest
import yaml

from nextlong.cli import main
from nextlong.cli.demo import write_demo_corpus
from tests.support.larger_cases import thorough

README = Path(__file__).parents[1] / "README.md"
PYTHON = README.parent / "docs" / "python.md"
BLOCKS = [
    block
    for page in (README, PYTHON)
    for block in re.findall(
        r"```python\n(.*?)```", page.read_text(encoding="utf-8"), flags=re.DOTALL
    )
]


def test_readme_and_its_page_have_examples():
    assert len(BLOCKS) == 4


WHOLE = 'write_demo_corpus(Path("corpus.jsonl"))\n'
PART = (
    WHOLE + '    lines = Path("corpus.jsonl").read_text().splitlines(keepends=True)\n'
)
PART += '    Path("corpus.jsonl").write_text("".join(lines[:150]))\n'


@pytest.mark.parametrize(
    "block",
    [
        pytest.param(BLOCKS[0], marks=pytest.mark.heavy),  # needs datasets
        pytest.param(BLOCKS[1], marks=pytest.mark.heavy),  # needs datasets and torch
        *thorough(BLOCKS[2]),
        BLOCKS[2].replace(WHOLE, PART),
        BLOCKS[3],
    ],
    ids=[
        "data set",
        "synthesize",
        "pipeline",
        "pipeline of a part of the corpus",
        "algorithms",
    ],
)
def test_example_runs(block, tmp_path):
    (tmp_path / "example.py").write_text(block, encoding="utf-8")
    if "docs.jsonl" in block:
        write_demo_corpus(tmp_path / "docs.jsonl")
    done = subprocess.run(
        [sys.executable, "-W", "error", "example.py"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    if "nextlong.run(" in block:
        assert re.fullmatch(
            r"(nextlong-[0-9a-f]{16} meta python-\S+ .*\n(.*\n)*?)+", done.stdout
        )


def test_every_path_in_the_readme_exists():
    text = README.read_text(encoding="utf-8")
    for path in re.findall(r"\]\((?!http)([^)#]+)\)", text):
        assert (README.parent / path).exists(), path


def test_the_recalls_are_those_of_the_results():
    path = README.parent / "docs/results/mechanism.json"
    models = json.loads(path.read_text(encoding="utf-8"))["models"]
    text = README.read_text(encoding="utf-8").split("## Does it work?")[1]

    def recall(arm, kind):
        values = [
            model["measured"]["recall"][kind][count]
            for model in models
            if model["arm"] == arm
            for count in ("4", "8")
        ]
        return f"{fmean(values):.0f} %"

    top, random, unrelated = "top", "random-corpus", "unrelated only"
    assert (
        f"{recall(top, 'same')} of the facts with hard negatives, "
        f"{recall(random, 'same')} with random ones and "
        f"{recall(unrelated, 'same')} with unrelated ones"
    ) in text
    assert (
        f"the three recall {recall(top, 'far')}, {recall(random, 'far')} and "
        f"{recall(unrelated, 'far')}"
    ) in text
    seeds = {model["seed"] for model in models if model["arm"] == top}
    assert f"{len(seeds)} base models" in text


def _commands(page):
    lines = re.findall(
        r"^    (?:pip install '.+' && )?(nextlong .*)",
        page.read_text(encoding="utf-8"),
        flags=re.MULTILINE,
    )
    return [
        command.partition("#")[0].strip()
        for line in lines
        for command in line.split(" && ")
    ]


COMMANDS, TUTORIAL = (
    _commands(README),
    _commands(README.parent / "docs" / "tutorial.md"),
)
# What needs a model, a server, a second run or hours is only parsed here, and run by
# the tests of these commands.
ONLY_PARSED = ("view", "train", "evaluate", "RUN-512K", "nextlong-demo")


@pytest.mark.parametrize("command", [*COMMANDS, *TUTORIAL])
def test_command_is_known(command):
    main.parser().parse_args(shlex.split(command)[1:])


@pytest.mark.heavy  # the report needs its extra
def test_commands_run_in_their_order(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    write_demo_corpus(tmp_path / "all.jsonl")
    lines = (
        (tmp_path / "all.jsonl").read_text(encoding="utf-8").splitlines(keepends=True)
    )
    (tmp_path / "docs.jsonl").write_text("".join(lines[:300]), encoding="utf-8")
    ran = set()
    for command in COMMANDS:
        if any(name in command for name in ONLY_PARSED):
            continue
        arguments = shlex.split(
            command.replace("--tokenizer PATH", "--tokenizer 2000")
        )[1:]
        recipe = Path("my.yaml")
        assert (
            main.main(
                [
                    re.sub(r"\bRUN\b", _run_dir(recipe), argument)
                    for argument in arguments
                ]
            )
            == 0
        ), command + capsys.readouterr().err
        ran.add(arguments[0])
        if arguments[0] == "init":  # sequences that so few documents can fill
            keys = yaml.safe_load(recipe.read_text(encoding="utf-8"))
            keys["compose"] = {**keys["compose"], "target_tokens": 4096, "sequences": 4}
            recipe.write_text(yaml.safe_dump(keys), encoding="utf-8")
    assert ran >= {
        "init",
        "plan",
        "run",
        "verify",
        "stats",
        "report",
        "list",
        "sweep",
        "compare",
        "export",
    }


def _run_dir(recipe):
    return (
        yaml.safe_load(recipe.read_text(encoding="utf-8"))["run_dir"]
        if recipe.exists()
        else "RUN"
    )


@pytest.mark.heavy
def test_the_commands_of_the_tutorial_run_in_their_order(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "my-model").mkdir()
    for command in TUTORIAL:
        assert main.main(shlex.split(command)[1:]) == 0, (
            command + capsys.readouterr().err
        )
        if (
            command == "nextlong demo"
        ):  # its documents and tokenizer stand for the reader's own
            shutil.copytree(
                tmp_path / "nextlong-demo",
                tmp_path / "my-documents",
                ignore=shutil.ignore_patterns("run"),
            )
            (tokenizer,) = tmp_path.glob(
                "nextlong-demo/run/*-tokenizer-*/*.tokenizer.json"
            )
            shutil.copy(tokenizer, tmp_path / "my-model" / "tokenizer.json")
    assert list(tmp_path.glob("data/long-128k/*.mds"))
