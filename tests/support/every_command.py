"""Every command with arguments that make it say something, by name; what a test over all of them calls."""

import argparse
import json
import re
import shutil
from pathlib import Path

from nextlong import checks
from nextlong.cli import demo, main
from nextlong.evaluate import results
from nextlong.sequences import verify_dependence
from tests.support.copying_model import CopyingModel

NEEDS_EXTRA = ("report", "train --dry-run", "evaluate --dry-run")
_PAGE = (Path(__file__).parents[2] / "docs/reference/json.md").read_text("utf-8")
SERVES = "view"  # until it is stopped


def commands():
    """Return the name and parser of every command, as the parser knows them."""
    return _subcommands(main.parser())


def parsers_of(command):
    """Return the parsers that print help for a command: its own, or its subcommands'."""
    return list(_subcommands(command).values()) or [command]


def _subcommands(parser):
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            return dict(action.choices)
    return {}


def write_long_documents(path):
    """Write 60 documents of three chunks each, in the stead of Python's documentation."""
    rows = [
        {
            "id": f"d{number}",
            "text": "\n".join(
                f"{place}{number} " + f"word{place % 7} of {number} " * 110
                for place in range(4)
            ),
        }
        for number in range(60)
    ]
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return 60, path.stat().st_size


def write_results(folder):
    """Write what an evaluation leaves of one task."""
    (folder / "vt").mkdir(parents=True)
    (folder / "evaluation.json").write_text(
        json.dumps(
            {"format": 2, "nextlong": "0", "model": {"name": "m", "label": "a model"}}
        )
    )
    values = {
        "task": "vt",
        "length": 8192,
        "score": 12.5,
        "samples": [{"details": {}, "scores": {}}],
    }
    results.path_of(folder, "vt", 8192).write_text(json.dumps({"format": 2, **values}))


def every_command(folder, few_run, few_recipe, monkeypatch):
    """Return the arguments of each command, and of some of its forms, by name; `folder` is theirs to write in."""
    run = Path(shutil.copytree(few_run, folder / "run"))
    (folder / "r.yaml").write_text(few_recipe(run).dump())
    few_rows = [
        "--set",
        "data.validation=0.5",
        "--set",
        "training.tokens_per_step=1024",
    ]
    write_long_documents(folder / "own.jsonl")
    write_results(folder / "results")
    monkeypatch.setattr(demo, "write_demo_corpus", write_long_documents)
    for name, value in (
        ("_SEQUENCES", 2),
        ("_TARGET_TOKENS", 8192),
        ("_VOCABULARY", 512),
    ):
        monkeypatch.setattr(demo, name, value)
    whole = (
        demo.run_recipe
    )  # in this process: starting others took most of the demo's time
    serial = lambda recipe, args: whole(  # noqa: E731
        recipe.model_copy(update={"executor": "serial"}), args
    )
    monkeypatch.setattr(demo, "run_recipe", serial)
    monkeypatch.setattr(verify_dependence, "load_scorer", lambda _: CopyingModel())
    monkeypatch.setattr(checks, "check_scorer", lambda *_, **__: None)
    # One sequence, so that no further attempt leaves what `gc` finds.
    verified = ["--set", "compose.verify_dependence=0", "--set", "executor=serial"]
    verified += ["--set", "compose.sequences=1"]
    monkeypatch.chdir(folder)
    return {
        "demo": ["demo", "--dir", "d"],
        "init": ["init", "i.yaml", "own.jsonl", "--force"],
        "init --preset": ["init", "p.yaml", "--preset", "paper-128k", "--force"],
        "plan": ["plan", "r.yaml", "--set", "compose.method=standard"],
        "run": ["run", "r.yaml"],
        "run --before": ["run", "r.yaml", "--before", "embed"],
        "run --only-step": ["run", "r.yaml", "--only-step", "embed"],
        "list": ["list", "run"],
        "gc": ["gc", "run"],
        "peek": ["peek", "run"],
        "peek NUMBER": ["peek", "run", "0"],
        "stats": ["stats", "run"],
        "compare": ["compare", "run", "run"],
        "report": ["report", "run"],
        "view": ["view", "run"],
        "refresh": ["refresh", "run", "--model", "m", *verified],
        "sweep": ["sweep", "r.yaml", "--over", "compose.position=head,tail"],
        "export": ["export", "run", "--to", "jsonl"],
        "train": [
            "train",
            "init",
            "t.yaml",
            "--data",
            "run@base",
            "--preset",
            "tiny",
            "--force",
            *few_rows,
        ],
        "train --dry-run": ["train", "t.yaml", "--dry-run"],
        "evaluate": ["evaluate", "report", "results"],
        "evaluate --dry-run": [
            "evaluate",
            "run",
            "model",
            "--url",
            "http://127.0.0.1:9/v1",
            "--suite",
            "ruler",
            "--tasks",
            "vt",
            "--dry-run",
        ],
        "verify": ["verify", "run", "--sample", "2"],
        "doctor": ["doctor"],
        "completion": ["completion", "bash"],
    }


def paths_left_out(line):
    """Return a line without the words that are paths or addresses, which stay whole."""
    return re.sub(r"\S*/\S*", "", line)


def documented(command):
    """Return the keys that docs/reference/json.md names for a command."""
    section = re.search(
        rf"^## {command}\n(.*?)(?=^## |\Z)", _PAGE, flags=re.DOTALL | re.MULTILINE
    )[1]
    keys = re.search(r"Keys: (.*?)(?:\n\n|\Z)", section, flags=re.DOTALL)[1]
    return re.findall(r"`(\w+)`", keys)
