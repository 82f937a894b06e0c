"""The step that gathers examples of what was left out: what it reads, and from whom."""

from pathlib import Path
from types import SimpleNamespace

import pytest

from nextlong.corpus.left_out_step import left_out_step
from nextlong.engine.step import Step
from nextlong.recipe import Recipe
from nextlong.results import IngestResult, LeftOutResult


def step(name):
    return Step(name, 1, {}, (), lambda _: [])


@pytest.fixture
def recipe():
    return Recipe.from_dict(
        {
            "run_dir": "r",
            "ingest": {"sources": [{"path": "a.jsonl", "name": "one"}, {"path": "b.jsonl", "name": "two"}]},
            "tokenizer": {"train": 300},
        }
    )


def made(recipe, *others):
    return left_out_step(recipe, [["a", "b"], ["c"]], step("ingest"), step("select"), [step(name) for name in others])


def test_it_reads_what_leaves_documents_out_and_no_other_step(recipe):
    of = made(recipe, "minhash", "similar_pairs", "near_duplicates", "eval_ngrams", "contaminated", "clean")
    assert [one.name for one in of.inputs] == ["ingest", "select", "near_duplicates", "contaminated"]
    assert of.result is LeftOutResult
    assert [one.name for one in made(recipe).inputs] == ["ingest", "select"]
    assert of.fingerprint != made(recipe).fingerprint


def done(name, *, rejects=0):
    """A finished step whose files are named by it."""
    ingested = [SimpleNamespace(rejects=some, shards=shards) for some, shards in ((0, 2), (0, 1), (rejects, 1))]
    return SimpleNamespace(
        files=lambda suffix: [Path(f"{name}{suffix}")],
        results=lambda kind: ingested if kind is IngestResult else [f"{name} told"],
        result=lambda kind: f"{name} told",
    )


def looks(recipe, names, **ingest):
    (task,) = made(recipe, *names).tasks(
        {"ingest": done("ingest", **ingest), **{name: done(name) for name in ("select", *names)}}
    )
    return task.keywords["looks"]


def test_what_stays_is_what_the_last_filter_of_documents_says(recipe):
    plain = looks(recipe, [])
    assert plain.stay == plain.keep == (Path("select.keep.npy"),)
    assert (plain.near, plain.contaminated) == (None, ())
    filtered = looks(recipe, ["near_duplicates", "contaminated"])
    assert filtered.stay == (Path("near_duplicates.keep.npy"),)
    assert filtered.keep == (Path("select.keep.npy"),)
    assert (filtered.near, filtered.contaminated) == ("near_duplicates told", ["contaminated told"])


def test_each_shard_has_the_name_of_its_source_and_rejects_are_read_where_there_are_any(recipe):
    assert looks(recipe, []).labels == ["one", "one", "two"]
    assert looks(recipe, []).source_of == [0, 0, 0, 1]
    assert looks(recipe, []).rejects == ()
    assert looks(recipe, [], rejects=1).rejects == (Path("ingest.rejects.arrow"),)
