"""The runs of a replication: what their recipes have in common, and what each compares."""

import json
from types import SimpleNamespace

import pytest

from nextlong.errors import CorpusError, RunError
from nextlong.recipe import Recipe
from nextlong.recipe.keys import Source
from nextlong.replicate import data
from nextlong.replicate.data import HELD_OUT_NEGATIVES, Arm, Stage
from nextlong.replicate.recipe import KEYS, Corpus, Replication


@pytest.fixture
def recipe(small_replication, tmp_path):
    keys = small_replication(tmp_path, experiments=["methods", "granularity"])
    keys["data"]["settings"] = {"executor": "serial", "mine.near_duplicates": None}
    return Replication.from_dict(keys)


@pytest.fixture
def documents(tmp_path):
    return Stage(tmp_path / "corpus", "documents", {"corpus": "made up"})


@pytest.fixture
def swept(monkeypatch):
    """The recipe and axis of every sweep; nothing runs."""
    sweeps = []

    def run_variants(variants, *, make):
        for variant in variants:
            yield SimpleNamespace(variant=variant, stats=SimpleNamespace(sequences=4), error=None)

    def opened(name):
        manifest = {"fingerprint": name.rpartition("@")[2]}
        return SimpleNamespace(
            variant=SimpleNamespace(named=name), steps={"compose": SimpleNamespace(manifest=manifest)}
        )

    def variants(path, axes):
        sweeps.append((Recipe.load(path), axes))
        return real(path, axes)

    real = data.sweep.variants
    monkeypatch.setattr(data.sweep, "variants", variants)
    monkeypatch.setattr(data.sweep, "run_variants", run_variants)
    monkeypatch.setattr(data, "Run", opened)
    return sweeps


def test_every_experiment_is_a_sweep_over_its_key(recipe, documents, swept, tmp_path):
    arms = data.make_arms(recipe, documents, tmp_path, "tokenizer.json")
    assert [(axis.key, axis.values) for _, (axis,) in swept] == [
        (KEYS["methods"], ("standard", "nextlong")),
        (KEYS["granularity"], (200, 300)),
    ]
    assert [(arm.experiment, arm.value) for arm in arms] == [
        ("methods", "standard"),
        ("methods", "nextlong"),
        ("granularity", 200),
        ("granularity", 300),
    ]
    for made, _ in swept:
        assert made.tokenizer.source == "tokenizer.json"
        assert made.compose.target_tokens == recipe.extend.tokens
        assert made.compose.sequences == recipe.data.sequences
        assert made.decontaminate.files == (str(documents.folder / "held-out.jsonl"),)
        assert [source.path for source in made.ingest.sources] == [str(documents.folder / "train.jsonl")]
        assert (made.executor, made.mine.near_duplicates) == ("serial", None)  # data.settings


def test_held_out_documents_are_not_held_against_themselves(recipe, documents, swept, tmp_path):
    arms = data.make_held_out(recipe, documents, tmp_path, "tokenizer.json")
    ((made, (axis,)),) = swept
    assert axis.values == HELD_OUT_NEGATIVES == tuple(arm.value for arm in arms)
    assert made.decontaminate.files == ()
    assert [source.path for source in made.ingest.sources] == [str(documents.folder / "held-out.jsonl")]
    assert made.compose.sequences == recipe.measure.sequences


def test_a_variant_that_cannot_be_made_ends_it(recipe, documents, swept, tmp_path, monkeypatch):
    def failing(variants, *, make):
        for variant in variants:
            yield SimpleNamespace(variant=variant, stats=None, error="the corpus is too small")

    monkeypatch.setattr(data.sweep, "run_variants", failing)
    with pytest.raises(CorpusError, match="standard: the corpus is too small"):
        data.make_arms(recipe, documents, tmp_path, "tokenizer.json")


@pytest.mark.parametrize(("given", "made"), [(None, {"train": 700}), ("org/model", {"source": "org/model"})])
def test_the_tokenizer_is_the_users_or_trained_on_the_corpus(recipe, documents, tmp_path, monkeypatch, given, made):
    plain = recipe.model_dump(mode="json")
    plain["data"]["tokenizer"] = given
    ran = []
    monkeypatch.setattr(data.export, "run", lambda recipe: ran.append(recipe) or pytest.skip.Exception("enough"))
    with pytest.raises(AttributeError):
        data.make_runs(Replication.from_dict(plain), documents, tmp_path)
    assert ran[0].tokenizer.model_dump(include=set(made)) == made


@pytest.mark.parametrize(("value", "name"), [("nextlong", "nextlong"), (32768, "32,768")])
def test_an_arm_is_called_by_its_value(value, name):
    assert Arm("methods", value, "run", "fingerprint", None).name == name


def test_settings_reach_into_sections(recipe):
    keys = {"mine": {"candidates": 8}, "run_dir": "r"}
    made = data._with_settings(recipe, keys)
    assert made["mine"] == {"candidates": 8, "near_duplicates": None}
    assert made["executor"] == "serial"
    assert json.loads(json.dumps(made)) == made


def test_a_stage_is_finished_once_it_says_what_came_of_it(tmp_path):
    stage = Stage(tmp_path, "data", {"a": 1, "path": tmp_path})
    assert not stage.is_finished
    with pytest.raises(RunError):
        _ = stage.record
    stage.finish({"loss": 0.5})
    assert stage.is_finished
    assert stage.record == {"loss": 0.5}


def test_a_folder_is_named_by_what_it_depends_on_in_whatever_order(tmp_path):
    one, same, other = (
        Stage(tmp_path, "data", keys) for keys in ({"a": 1, "b": 2}, {"b": 2, "a": 1}, {"a": 2, "b": 2})
    )
    assert one.folder == same.folder != other.folder
    assert Stage(tmp_path, "model", {"a": 1, "b": 2}).folder not in (one.folder, other.folder)


def test_records_without_a_document_are_told_by_reason(tmp_path):
    (tmp_path / "a.jsonl").write_text('{"txt": "a"}\n{"text": ""}\n{"text": " "}\n')
    asked = Corpus(sources=(Source(path=str(tmp_path / "a.jsonl")),))
    with pytest.raises(CorpusError, match="rejected: 2 × empty, 1 × no text column; add documents, correct"):
        data.split_documents(asked, data.split_stage(asked, tmp_path / "out"))
