"""`python -m experiments.replicate` before anything runs: what is asked, and what is missing."""

import pytest
from experiments.replicate.__main__ import main

from nextlong.cli import common
from nextlong.errors import NextlongError


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (
            ["run", "--preset", "smok"],
            "--preset 'smok': unknown preset; choose from mechanism, discriminating",
        ),
        (
            ["run", "r.yaml"],
            "r.yaml: it does not exist; `python -m experiments.replicate init r.yaml --preset smoke` writes a commented recipe",
        ),
        (
            ["run", "--preset", "smoke", "--set", "seeds=[]"],
            "--preset smoke: seeds=[] is empty",
        ),
        (
            ["run", "--preset", "mechanism", "--set", "arms=[quests]"],
            "arms: 'quests' is not known; choose from top, random-corpus",
        ),
        (
            ["run", "--preset", "mechanism", "--set", "extend.row_tokens=300"],
            "extend.row_tokens=300 is not a multiple of pretrain.tokens=128",
        ),
        (
            ["run", "--preset", "mechanism", "--set", "pretrain.tokens_per_step=1000"],
            "tokens_per_step=1000 is not a multiple of a row",
        ),
        pytest.param(
            ["report", "r.json"],
            "r.json: it does not exist; `python -m experiments.replicate run --preset mechanism` writes one",
            marks=pytest.mark.heavy,  # matplotlib is asked for first
        ),
    ],
)
def test_a_wrong_command_ends_with_2(arguments, told, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert main(arguments) == 2
    assert told in capsys.readouterr().err.replace("\n", " ")
    assert not list(tmp_path.iterdir())


def test_packages_that_are_missing_are_named_together(monkeypatch):
    monkeypatch.setattr(
        common.importlib.util,
        "find_spec",
        lambda name: None if name in ("torch", "transformers") else 1,
    )
    with pytest.raises(NextlongError) as raised:
        common.check_installed(
            "replicate", "torch", "transformers", "matplotlib", extra="train,evaluate"
        )
    assert raised.value.where == "replicate"
    assert "torch, transformers" in raised.value.problem
    assert raised.value.fix == "pip install 'nextlong[train,evaluate]'"
    common.check_installed("replicate", "matplotlib", extra="train,evaluate")


@pytest.mark.heavy  # a plan measures a step
def test_the_mechanism_experiment_is_planned_from_a_preset_and_from_its_recipe(
    tmp_path, capsys
):
    path = tmp_path / "m.yaml"
    assert (
        main(
            [
                "init",
                str(path),
                "--preset",
                "mechanism",
                "--set",
                "seeds=[7, 8]",
            ]
        )
        == 0
    )
    assert "# seeds of the weights and of the order of rows" in path.read_text()
    capsys.readouterr()
    assert main(["run", str(path), "--set", "arms=[top, quest]", "--dry-run"]) == 0
    told = " ".join(capsys.readouterr().out.split())
    assert "2 pretrained, 4 extended: top, quest" in told
    assert not (tmp_path / "nextlong-replicate-mechanism").exists()
