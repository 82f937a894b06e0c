"""A replication from end to end: killed at any stage it ends as if it had not been; every number is that of a file."""

import json
import os
import re
import subprocess
import sys

import pytest
import yaml

from killed import kill_at
from nextlong.cli.main import main

pytestmark = pytest.mark.heavy


def saved(keys, path):
    path.write_text(yaml.safe_dump(keys), encoding="utf-8")
    return path


def page(out):
    """Return the report's text and every figure's."""
    drawn = {path.name: path.read_bytes() for path in sorted((out / "figures").iterdir())}
    return (out / "report.md").read_text(encoding="utf-8"), (out / "report.tex").read_text(encoding="utf-8"), drawn


def test_killed_at_every_stage_it_ends_as_if_it_had_not_been(small_replication, tmp_path):
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    replicate = [sys.executable, "-m", "nextlong", "replicate"]
    # Both on as many threads, on which the last bits of a product depend.
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
    uninterrupted = [*replicate, str(saved(small_replication(whole), tmp_path / "whole.yaml"))]
    subprocess.run(uninterrupted, env=environment, check=True, capture_output=True)
    command = [*replicate, str(saved(small_replication(killed), tmp_path / "k.yaml"))]
    for place, count in (
        ("corpus/*/train.jsonl*", 2),
        ("runs/extension-*/variants/*.json", 1),
        ("models/pretrained-seed0-*/checkpoints/*", 9),
        ("results/tasks-*/results/*/*.partial.jsonl", 4),
        ("models/extended-seed1-*/checkpoints/*", 3),
    ):
        kill_at(command[3:], f"{killed}/{place}", count, environment=environment)
    done = subprocess.run(command, env=environment, check=True, capture_output=True, text=True)
    assert page(killed) == page(whole)
    assert "standard, seed 1: measured" in done.stdout
    again = subprocess.run(command, env=environment, check=True, capture_output=True, text=True)
    assert again.stdout.count(": kept") == 6
    assert "measured" not in again.stdout
    assert not list(killed.glob("models/*/checkpoints"))


def test_tables_hold_what_the_results_hold_and_the_papers_numbers(small_replication, tmp_path, capsys):
    out = tmp_path / "out"
    keys = small_replication(out, seeds=[3], experiments=["methods", "granularity", "position", "negatives"])
    keys["data"] = {**keys["data"], "sequences": 500}
    keys |= {"position": ["head", "tail"], "negatives": ["top", "self-repeat"]}
    assert main(["replicate", str(saved(keys, tmp_path / "r.yaml"))]) == 0
    assert "sequences of 500, which are read" in capsys.readouterr().out
    report = (out / "report.md").read_text(encoding="utf-8")
    # nextlong as it comes stands in every experiment, and is trained and measured once.
    trained = list(out.glob("models/extended-*/stage.json"))
    assert len(trained) == 2 + 1 + 1 + 1
    gains = sorted(
        json.loads(path.read_text())["scores"]["gain_nats"]
        for path in out.glob("results/dependency-top-*/results/dependency/any.json")
    )
    table = report.split("## Methods: scores")[1].split("##")[0]
    column = table.split("\n| |")[1].split("|").index(" Gain, hard negatives ") + 1
    shown = {
        row.split("|")[column + 1].strip() for row in table.splitlines() if re.match(r"\| (not|standard|nextlong)", row)
    }
    assert shown <= {f"{round(gain, 3) + 0.0:.3f}" for gain in gains}
    assert "| nextlong | 62.58 | 82.56 | 60.91 | 81.76 | 31.47 | 37.30 | 81.50 |" in report
    assert "| tail | 60.01 | 72.66 |" in report
    for name in ("granularity-curve", "negatives-similarity", "methods-first-third", "position-gain-by-distance"):
        assert (out / "figures" / f"{name}.svg").read_text().startswith("<svg")
        assert (out / "figures" / f"{name}.png").read_bytes().startswith(b"\x89PNG")


def test_another_recipe_in_the_same_folder_keeps_what_it_shares(small_replication, tmp_path, capsys):
    path = saved(small_replication(tmp_path / "out", seeds=[0]), tmp_path / "r.yaml")
    assert main(["replicate", str(path)]) == 0
    capsys.readouterr()
    assert main(["replicate", str(path), "--set", "extend.steps=3"]) == 0
    told = capsys.readouterr().out
    assert "pretrained, seed 0: kept" in told
    assert "standard, seed 0: loss" in told
    assert "extended by 3,072" in (tmp_path / "out" / "report.md").read_text()


@pytest.mark.parametrize(
    ("lengths", "tasks", "told"),
    [
        (
            [200, 1024],
            ["copying"],
            "measure: copying needs at least 256 tokens, not 200; leave the length out",
        ),
        ([100], ["key_values"], "measure: key_values needs at least 128 tokens, not 100"),
        ([32], ["attention"], "measure: needle needs more than 32 tokens"),
    ],
)
def test_a_probe_that_a_length_is_too_short_for_is_told_before_anything_is_trained(
    small_replication, tmp_path, capsys, lengths, tasks, told
):
    keys = small_replication(tmp_path / "out", seeds=[0], methods=["standard"])
    keys["measure"] = {**keys["measure"], "lengths": lengths, "tasks": tasks}
    assert main(["replicate", str(saved(keys, tmp_path / "r.yaml"))]) == 2
    assert told in capsys.readouterr().err.replace("\n", " ")
    assert not (tmp_path / "out" / "models").exists()
