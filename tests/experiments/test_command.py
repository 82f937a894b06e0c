"""`python -m experiments.replicate` before anything runs: what is asked, what is missing, whose documents are taken."""

import io

import pytest
from experiments.replicate.__main__ import main, with_corpus
from experiments.replicate.recipe import recipe_from
from rich.console import Console

from nextlong.cli import common
from nextlong.errors import NextlongError


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (
            ["run", "--preset", "smok"],
            "--preset 'smok': unknown preset; choose from smoke, mechanism, cpu-night, one-gpu",
        ),
        (
            ["run", "r.yaml"],
            "r.yaml: it does not exist; `python -m experiments.replicate init r.yaml --preset smoke` writes a commented recipe",
        ),
        (["run", "r.yaml", "--corpus", "x.jsonl"], "--corpus: belongs to --preset"),
        (
            ["run", "--preset", "smoke", "--set", "seeds=[]"],
            "--preset smoke: seeds=[] is empty",
        ),
        (
            ["run", "--preset", "mechanism", "--corpus", "x.jsonl"],
            "--preset mechanism: it invents its corpus",
        ),
        (
            ["run", "--preset", "mechanism", "--set", "arms=[quests]"],
            "arms: 'quests' is not known; choose from nextlong, random",
        ),
        (
            ["run", "--preset", "mechanism", "--set", "extend.row_tokens=1024"],
            "extend.row_tokens=1024 is shorter than a sequence",
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


def test_documents_are_the_users_or_pythons_own_written_once(tmp_path, monkeypatch):
    written = []
    monkeypatch.setattr(
        "experiments.replicate.__main__.write_demo_corpus",
        lambda path: (written.append(path), path.touch()),
    )
    told = io.StringIO()
    console = Console(file=told, width=500)
    users = recipe_from("smoke", out=str(tmp_path), sources=["a.jsonl"])
    assert with_corpus(users, console) is users
    for _ in range(2):
        recipe = with_corpus(recipe_from("smoke", out=str(tmp_path)), console)
    path = tmp_path / "python-documentation.jsonl"
    assert written == [path]
    assert [(source.path, source.label) for source in recipe.corpus.sources] == [
        (str(path), "python-documentation")
    ]
    assert recipe.corpus.vocabulary == users.corpus.vocabulary
    assert (
        told.getvalue().count(
            "the documentation of Python (use --corpus FILE for yours)"
        )
        == 2
    )


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
    assert main(["run", str(path), "--set", "arms=[nextlong, quest]", "--dry-run"]) == 0
    told = " ".join(capsys.readouterr().out.split())
    assert "2 pretrained, 4 extended: nextlong, quest" in told
    assert not (tmp_path / "nextlong-replicate-mechanism").exists()
