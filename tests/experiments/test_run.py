"""An experiment from end to end, at a size that teaches nothing: arms differ in their data alone, and it resumes."""

import json
from importlib.resources import files

import numpy as np
import pytest
import yaml

pytest.importorskip("torch")
from experiments.replicate.__main__ import main
from experiments.replicate.recipe import ARMS, Replication
from experiments.replicate.run import _collect, _Experiment, _Stage, plan, replicate

from nextlong.errors import RecipeError, RunError
from nextlong.runs.run import Run
from nextlong.train import sources
from nextlong.train.recipe import Data

pytestmark = pytest.mark.heavy

SMALL = {
    "preset": "mechanism",
    "seeds": [0],
    "arms": ["nextlong", "standard"],
    "corpus": {
        "kind": "invented",
        "documents": 500,
        "held_out": 60,
        "long": 40,
        "echoes": 60,
    },
    "model": {"hidden_size": 16, "intermediate_size": 16, "heads": 2},
    "pretrain": {"steps": 2, "recall": 0.0, "most_legs": 1},
    "extend": {
        "steps": 2,
        "lengths": [256, 512],
        "row_tokens": 512,
        "tokens_per_step": 1024,
        "data_tokens": 4096,
    },
    "measure": {"negatives": [0, 12], "probes": 2, "rows": 2},
    "workers": 1,
}


def small(out, **more):
    return Replication.from_dict({**SMALL, "out": str(out), **more})


@pytest.fixture(scope="module")
def experiment(tmp_path_factory):
    made = _Experiment(small(tmp_path_factory.mktemp("out")), lambda line: None)
    assert made.plain_runs
    return made


def rows_of(experiment, arm):
    source = sources.rows_of(
        Data(**experiment.data_of(arm), validation=0.0), split="train", tokenizer=None
    )
    return [source.read(row) for row in range(len(source))]


def test_every_hypothesis_is_about_arms_and_kinds_that_there_are():
    text = (files("experiments.replicate") / "hypotheses.yaml").read_text(
        encoding="utf-8"
    )
    claims = [claim for part in yaml.safe_load(text).values() for claim in part]
    assert {
        name for claim in claims for name in (claim["ours"], *claim["theirs"])
    } <= set(ARMS)
    assert {claim["kind"] for claim in claims} == {"hard", "random"}


def test_half_of_the_tokens_are_short_rows_unless_the_arm_has_none(experiment):
    short = experiment.recipe.pretrain.tokens
    for name, share in (
        ("nextlong", 0.5),
        ("standard", 0.5),
        ("nextlong, no replay", 0.0),
    ):
        lengths = np.concatenate(
            [lengths for _, lengths, *_ in rows_of(experiment, ARMS[name])]
        )
        in_short = lengths[lengths == short].sum() / lengths.sum()
        # Sequences of 256 tokens, a quarter of the others' tokens or a half, are as
        # long as a short row.
        assert in_short == pytest.approx(share + (1 - share) / 2, abs=0.05)


def test_sequences_are_those_of_ordinary_runs(experiment):
    runs = experiment.data_of(ARMS["nextlong"])["runs"]
    assert [Run(run).recipe.compose.target_tokens for run in runs[:2]] == [256, 512]
    sequence = next(iter(Run(runs[1]).sequences()))
    assert len(sequence.input_ids) == 512
    assert {span.role for span in sequence.spans} - {"separator"} == {
        "meta",
        "negative",
    }


def test_a_seed_without_retrieval_is_left_out_and_if_it_forms_in_none_the_experiment_stops(
    tmp_path,
):
    recipe = small(
        tmp_path / "out", pretrain={"steps": 1, "recall": 1.0, "most_legs": 1}
    )
    with pytest.raises(RunError) as error:
        replicate(recipe, report=print)
    assert error.value.where == str(tmp_path / "out")
    assert "pretrain.most_legs" in error.value.fix
    told = []
    experiment = _Experiment(recipe, told.append)
    assert experiment.plain_runs
    assert experiment.base(0) == []
    assert "the base model recalls" in told[-1]
    assert _collect(experiment)["models"] == []


def test_short_rows_alone_and_long_documents_are_arms(experiment):
    short = experiment.recipe.pretrain.tokens
    lengths = np.concatenate(
        [lengths for _, lengths, *_ in rows_of(experiment, ARMS["short rows only"])]
    )
    assert set(lengths.tolist()) == {short}
    run = Run(experiment.data_of(ARMS["long documents"])["runs"][1])
    assert {
        span.source_id.partition("-")[0]
        for sequence in run.sequences()
        for span in sequence.spans
        if span.source_id
    } == {"long"}


def test_it_resumes_and_its_results_are_what_was_measured(tmp_path):
    out = tmp_path / "out"
    path = tmp_path / "m.yaml"
    path.write_text(yaml.safe_dump({**SMALL, "out": str(out)}))
    recipe = Replication.load(path)
    command = ["run", str(path)]
    assert main(command) == 0
    results = json.loads((out / "results.json").read_text())
    assert [model["arm"] for model in results["models"]] == [
        "base",
        "nextlong",
        "standard",
    ]
    tokens = {model["tokens"] for model in results["models"][1:]}
    assert tokens == {recipe.extend.trained_tokens}, "arms have equal tokens"
    trained = {
        path: path.stat().st_mtime_ns
        for path in out.glob("models/*/final/model.safetensors")
    }
    assert main(command) == 0
    assert json.loads((out / "results.json").read_text()) == results
    assert {
        path: path.stat().st_mtime_ns
        for path in out.glob("models/*/final/model.safetensors")
    } == trained
    assert (out / "results.md").read_text().startswith("# Results")


def test_real_documents_are_extended_and_measured_alike(small_corpus, tmp_path):
    out = tmp_path / "out"
    sources = [{"path": str(small_corpus), "name": "made up"}]
    keys = {
        **SMALL,
        "preset": "cpu-night",
        "arms": ["nextlong", "long documents, gzip-filtered"],
        "corpus": {
            "kind": "documents",
            "sources": sources,
            "vocabulary": 900,
            "held_out": 0.3,
            "echoes": 200,
        },
        "pretrain": {**SMALL["pretrain"], "models": "one"},
    }
    keys["corpus"] |= {"long_chars": 1000}
    replicate(
        Replication.from_dict({**keys, "out": str(out), "seeds": [0, 1]}),
        report=lambda line: None,
    )
    models = json.loads((out / "results.json").read_text())["models"]
    assert [(model["arm"], model["seed"]) for model in models] == [
        (arm, seed)
        for seed in (0, 1)
        for arm in ("base", "nextlong", "long documents, gzip-filtered")
    ]
    assert models[0]["sha256"] == models[3]["sha256"], "one base model for all seeds"
    assert models[1]["sha256"] != models[4]["sha256"]
    assert set(models[1]["measured"]["recall"]["hard"]) == {"0", "12"}
    keys["corpus"] = {**keys["corpus"], "long_chars": 10_000_000}
    with pytest.raises(RecipeError) as error:
        replicate(
            Replication.from_dict({**keys, "out": str(tmp_path / "other")}),
            report=lambda line: None,
        )
    assert error.value.where == "corpus"
    assert "corpus.long_chars" in error.value.fix


def test_a_plan_counts_models_tokens_and_hours_and_makes_nothing(tmp_path):
    facts = dict(
        plan(
            small(
                tmp_path / "out", seeds=[0, 1], extend={**SMALL["extend"], "steps": 3}
            )
        )
    )
    assert facts["models"] == "2 pretrained, 4 extended: nextlong, standard"
    assert "then 3,072 tokens an arm" in facts["training"]
    assert "core-hours" in facts["time"]
    assert not (tmp_path / "out").exists()


def test_a_stage_is_finished_once_it_says_what_came_of_it(tmp_path):
    stage = _Stage(tmp_path, "data", {"a": 1, "path": tmp_path})
    assert not stage.is_finished
    with pytest.raises(RunError):
        _ = stage.record
    stage.finish({"loss": 0.5})
    assert stage.is_finished
    assert stage.record == {"loss": 0.5}


def test_a_folder_is_named_by_what_it_depends_on_in_whatever_order(tmp_path):
    one, same, other = (
        _Stage(tmp_path, "data", keys)
        for keys in ({"a": 1, "b": 2}, {"b": 2, "a": 1}, {"a": 2, "b": 2})
    )
    assert one.folder == same.folder != other.folder
    assert _Stage(tmp_path, "model", {"a": 1, "b": 2}).folder not in (
        one.folder,
        other.folder,
    )
