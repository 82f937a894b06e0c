"""Filters of long documents: six by hand, any scores against a loop, runs that are verified, and gains against single rows."""

import gzip
import json
import random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.scoring_models import scoring_model

import nextlong
from nextlong import pipeline
from nextlong.corpus import long_documents
from nextlong.corpus.filter_report import read_filter_report
from nextlong.corpus.long_documents import (
    ScoreFilterResult,
    compression_ratio,
    context_gains,
    within_quantiles,
)
from nextlong.errors import RecipeError
from nextlong.recipe.keys import Scorer
from nextlong.report import summary
from nextlong.verify.corpus import check_corpus
from nextlong.verify.run_files import StoredRun

# From one that repeats itself to one of random letters.
SIX = [
    "one line again and again\n" * 40,
    "The tide turns twice a day, and the boats turn with it. " * 9,
    "".join(f"Boat {number} holds {number * 7 % 13} crates.\n" for number in range(30)),
    "Some words, then others; no sentence like the one before it. Quiet harbours.\n",
    "Gulls. Ropes! Why “sails”? (Nobody knows.) 42 knots, say: fast -- or slow?\n",
    "".join(random.Random(0).choices("abcdefghijklmnopqrstuvwxyz0123456789", k=900)),
]


def test_of_six_documents_the_two_at_the_ends_are_removed():
    ratios = [len(gzip.compress(text.encode())) / len(text.encode()) for text in SIX]
    assert [compression_ratio(text) for text in SIX] == ratios
    order = sorted(range(6), key=lambda index: ratios[index])
    # The quantile 0.2 of six is the second smallest, 0.8 the second largest.
    expected = [False] * 6
    for index in order[1:5]:
        expected[index] = True
    assert within_quantiles(np.array(ratios), (0.2, 0.8)).tolist() == expected


@given(
    st.lists(st.integers(0, 20), max_size=30),
    st.sampled_from([(0.2, 0.8), (0.5, 1.0), (0.75, 1.0)]),
)
def test_any_scores_are_kept_between_their_quantiles(scores, quantiles):
    kept = within_quantiles(np.array(scores, np.float64), quantiles)
    assert len(kept) == len(scores)
    below, above = quantiles[0] * len(scores), (1 - quantiles[1]) * len(scores)
    for score, is_kept in zip(scores, kept, strict=True):
        if not is_kept:
            smaller = sum(other < score for other in scores)
            larger = sum(other > score for other in scores)
            assert smaller <= below or larger <= above
    removed = len(scores) - int(kept.sum())
    assert removed <= below + above + 2


def words_of(seed, count, vocabulary):
    return " ".join(random.Random(seed).choices(vocabulary, k=count))


@pytest.fixture
def recipe_of_long(tmp_path, recipe_for, monkeypatch):
    """A recipe of two sources: short documents, and long ones from repetitive to random."""
    monkeypatch.setattr(long_documents, "LONG_CHARS", 2_000)
    sources = []
    for name, letters in (("prose", "aeiou"), ("code", "{}();=")):
        lines = []
        for number in range(30):
            vocabulary = [
                letters[word % len(letters)] * (1 + word // 9) + str(word)
                for word in range(3 + 20 * number)
            ]
            text = words_of(number, 700, vocabulary) + ".\n"
            lines.append({"id": f"{name}-long-{number}", "text": text})
            short = words_of(number, 30, vocabulary) + f" {number}.\n"
            lines.append({"id": f"{name}-short-{number}", "text": short})
        path = tmp_path / f"{name}.jsonl"
        path.write_text("".join(json.dumps(line) + "\n" for line in lines))
        sources.append({"path": str(path), "name": name})
    given = (f"ingest.sources={json.dumps(sources)}", "compose.method=standard")
    return lambda *overrides: recipe_for(
        tmp_path / "run", *given, "compose.sequences=4", *overrides
    )


def removed_by(run):
    """Return the ids of the documents that are not kept."""
    names = set()
    stored = StoredRun(run.path)
    for shard, path in enumerate(stored.files("chunk", ".chunks.arrow")):
        kept = set(nextlong.artifacts.corpus_files.read_chunks(path)["doc_row"])
        for first, batch in stored.documents(shard, "source_id"):
            for row, name in enumerate(batch.column(0).to_pylist(), first):
                if row not in kept:
                    names.add(name)
    return names


def test_each_source_loses_a_fifth_at_either_end(recipe_of_long):
    recipe = recipe_of_long("ingest.filter=gzip")
    pipeline.run(recipe)
    run = nextlong.open(recipe.run_path)
    result = run.steps["gzip"].result(ScoreFilterResult)
    assert (result.judged, result.removed) == (60, 24)
    expected = set()
    for source in recipe.ingest.sources:
        with open(source.path) as file:
            lines = [json.loads(line) for line in file]
        long = [line for line in lines if len(line["text"]) >= 2_000]
        long.sort(key=lambda line: compression_ratio(line["text"]))
        expected |= {line["id"] for line in long[:6] + long[-6:]}
    assert removed_by(run) == expected
    (left_out,) = read_filter_report(run.steps["filter_report"])
    assert (left_out.count, left_out.unit) == (24, "documents")
    assert {example.source_id for example in left_out.examples} <= expected
    assert "24 outside the middle" in summary._why_less(recipe, run.steps)
    for outcome in check_corpus(StoredRun(run.path)):
        assert outcome.result == "pass", outcome


def test_a_document_that_was_kept_wrongly_is_found(recipe_of_long):
    recipe = recipe_of_long("ingest.filter=gzip")
    pipeline.run(recipe)
    run = nextlong.open(recipe.run_path)
    path = StoredRun(run.path).files("gzip", ".keep.npy")[0]
    keep = np.load(path)
    keep[np.flatnonzero(~keep)[0]] = True
    np.save(path, keep)
    scores_path = StoredRun(run.path).files("gzip_scores", ".scores.npy")[0]
    scores = np.load(scores_path)
    scores[np.flatnonzero(~np.isnan(scores))[3]] += 0.001
    np.save(scores_path, scores)
    outcomes = {outcome.check: outcome for outcome in check_corpus(StoredRun(run.path))}
    outcome = outcomes["long documents that gzip keeps"]
    assert any("is kept, with the score" in example for example in outcome.examples)
    assert any("compresses otherwise" in example for example in outcome.examples)


def test_a_recipe_without_filters_has_the_steps_that_it_had(recipe_of_long):
    names = [step.name for step in pipeline.document_steps(recipe_of_long(), [[], []])]
    assert names == ["ingest", "select", "chunk", "filter_report"]


def test_gains_need_a_model(recipe_of_long):
    recipe = recipe_of_long("ingest.long_filter=0.5")
    with pytest.raises(RecipeError) as error:
        pipeline.document_steps(recipe, [[], []])
    assert error.value.where == "scorer.model"


@pytest.fixture(scope="module")
def model_folder(tmp_path_factory):
    return scoring_model(tmp_path_factory.mktemp("scoring") / "model", context=4_096)


@pytest.mark.heavy
def test_a_gain_is_the_loss_with_little_context_minus_that_with_all(
    model_folder, monkeypatch
):
    from nextlong.retrieval.surprisal import SurprisalModel

    monkeypatch.setattr(long_documents, "SHORT_CONTEXT", 12)
    monkeypatch.setattr(long_documents, "SCORED_TOKENS", 5)
    monkeypatch.setattr(long_documents, "MIN_SCORED_TOKENS", 18)
    model = SurprisalModel(Scorer(model=str(model_folder)))
    texts = ["One river runs north. " * count for count in (1, 3, 9)]
    expected = []
    for encoded in model.encode(texts):
        ids = encoded.ids
        if model.context is not None:
            ids = ids[1 - model.context :]
        if len(ids) < 18:
            expected.append(np.nan)
            continue
        (whole,) = model.score([ids])
        (end,) = model.score([ids[-17:]])
        expected.append(float((end.loss[-5:] - whole.loss[-5:]).mean()))
    assert np.isnan(expected[0])
    assert not np.isnan(expected[-1])
    np.testing.assert_allclose(context_gains(model, texts), expected, atol=1e-4)


@pytest.mark.heavy
def test_the_documents_with_the_highest_gains_are_kept(
    recipe_of_long, model_folder, monkeypatch
):
    monkeypatch.setattr(long_documents, "SHORT_CONTEXT", 12)
    monkeypatch.setattr(long_documents, "SCORED_TOKENS", 5)
    monkeypatch.setattr(long_documents, "MIN_SCORED_TOKENS", 18)
    recipe = recipe_of_long(
        "ingest.filter=gzip",
        "ingest.long_filter=0.5",
        f"scorer.model={model_folder}",
    )
    pipeline.run(recipe)
    run = nextlong.open(recipe.run_path)
    result = run.steps["long_filter"].result(ScoreFilterResult)
    # What gzip removed is not judged.
    assert (result.judged, result.removed) == (36, 18)
    assert len(removed_by(run)) == 24 + 18
    assert [
        entry.count for entry in read_filter_report(run.steps["filter_report"])
    ] == [
        24,
        18,
    ]
    for outcome in check_corpus(StoredRun(run.path)):
        assert outcome.result == "pass", outcome
