"""An experiment from end to end, at a size that teaches nothing: arms differ in their data alone, and it resumes."""

import json

import numpy as np
import pytest
import yaml

pytest.importorskip("torch")
from experiments.replicate import corpus
from experiments.replicate.__main__ import main
from experiments.replicate.corpus import VOCABULARY
from experiments.replicate.recipe import ARMS, Replication
from experiments.replicate.run import _collect, _Experiment, _Stage, plan, replicate

from nextlong.errors import RunError
from nextlong.train import sources
from nextlong.train.recipe import Data

pytestmark = pytest.mark.heavy

SMALL = {
    "preset": "mechanism",
    "seeds": [0],
    "arms": ["top", "standard"],
    "corpus": {"documents": 512, "held_out": 60, "echoes": 200},
    "model": {"hidden_size": 16, "intermediate_size": 16, "heads": 2},
    "pretrain": {"echo_steps": 2, "steps": 2, "recall": [0.0, 1.0], "most_legs": 1},
    "extend": {"steps": 2, "sequences": 40},
    "measure": {"negatives": [0, 4], "probes": 2, "rows": 2},
    "workers": 1,
}


def small(out, **more):
    return Replication.from_dict({**SMALL, "out": str(out), **more})


@pytest.fixture(scope="module")
def experiment(tmp_path_factory):
    made = _Experiment(small(tmp_path_factory.mktemp("out")), lambda line: None)
    assert made.plain_runs
    return made


def test_hard_negatives_are_look_alikes_and_the_control_has_none(experiment):
    shares = {}
    for arm in ("top", "unrelated only", "mixed", "standard"):
        shares[arm] = experiment.look_alikes(ARMS[arm])
    # A topic has 16 documents here, so a row may take all of its look-alikes.
    assert shares["top"] > 80
    assert shares["mixed"] == pytest.approx(50, abs=15)
    assert shares["unrelated only"] == 0
    assert shares["standard"] is None


def test_a_topic_is_known_by_the_number_of_a_document(experiment):
    lines = (experiment.corpus.folder / "train.jsonl").read_text().splitlines()
    for line in lines[:70]:
        record = json.loads(line)
        relations = VOCABULARY.relations[corpus.topic_of(record["id"])]
        assert set(relations) <= set(record["text"].split())


def test_half_of_the_tokens_are_short_rows(experiment):
    data = Data(**experiment.data_of(ARMS["top"]), validation=0.0)
    source = sources.rows_of(data, split="train", tokenizer=None)
    lengths = np.concatenate([source.read(row)[1] for row in range(len(source))])
    short = experiment.recipe.pretrain.tokens
    long = experiment.recipe.extend.row_tokens
    assert set(lengths.tolist()) == {short, long}
    in_short = lengths[lengths == short].sum() / lengths.sum()
    assert in_short == pytest.approx(0.5, abs=0.05)


def test_a_seed_without_the_recall_is_left_out_and_if_all_are_the_experiment_stops(
    tmp_path,
):
    keys = {"echo_steps": 1, "steps": 1, "recall": [1.0, 1.0], "most_legs": 1}
    recipe = small(tmp_path / "out", pretrain=keys)
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


def test_it_resumes_and_its_results_are_what_was_measured(tmp_path):
    out = tmp_path / "out"
    path = tmp_path / "m.yaml"
    path.write_text(yaml.safe_dump({**SMALL, "out": str(out)}))
    recipe = Replication.load(path)
    command = ["run", str(path)]
    assert main(command) == 0
    results = json.loads((out / "mechanism.json").read_text())
    assert [model["arm"] for model in results["models"]] == ["base", "top", "standard"]
    tokens = {model["tokens"] for model in results["models"][1:]}
    assert tokens == {recipe.extend.trained_tokens}, "arms have equal tokens"
    trained = {
        path: path.stat().st_mtime_ns
        for path in out.glob("models/*/final/model.safetensors")
    }
    assert main(command) == 0
    assert json.loads((out / "mechanism.json").read_text()) == results
    assert {
        path: path.stat().st_mtime_ns
        for path in out.glob("models/*/final/model.safetensors")
    } == trained
    assert "## Are hard negatives worth it?" in (out / "results.md").read_text()


def test_a_plan_counts_models_tokens_and_hours_and_makes_nothing(tmp_path):
    facts = dict(
        plan(
            small(
                tmp_path / "out", seeds=[0, 1], extend={**SMALL["extend"], "steps": 3}
            )
        )
    )
    assert facts["models"] == "2 pretrained, 4 extended: top, standard"
    assert "then 6,144 tokens an arm" in facts["training"]
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
