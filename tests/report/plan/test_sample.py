"""The size of the corpus as a sample has it: caps, weights, exclusions, documents that do not fit, documents of a sequence."""

import json

import numpy as np
import pytest
from tests.support.planned import sources_in

from nextlong.checks import Corpus
from nextlong.corpus import look
from nextlong.errors import CorpusError
from nextlong.recipe import Recipe
from nextlong.report.plan.amounts import Amounts
from nextlong.report.plan.sample import CorpusSample, sample


def sampled(recipe):
    return sample(recipe, Corpus(recipe))


@pytest.fixture
def two_sources(tmp_path):
    """200 documents of 100 characters, of two bytes each, in one source, 50 of 1,000 in another."""
    for name, count, text in (("small", 200, "é" * 95), ("large", 50, "b" * 995)):
        rows = [json.dumps({"text": f"{n:05d}" + text}) + "\n" for n in range(count)]
        (tmp_path / f"{name}.jsonl").write_text("".join(rows))
    return tmp_path


@pytest.mark.parametrize(
    ("small", "large", "documents", "chars"),
    [
        ({}, {}, 250, 70_000),
        ({"max_documents": 10}, {}, 60, 51_000),
        ({"max_documents": 10}, {"max_chars": 5_000}, 15, 6_000),
        ({"max_documents": 900}, {"max_chars": 10}, 201, 21_000),
        ({"weight": 1.0}, {"weight": 1.0}, 220, 40_000),
        ({"weight": 1.0, "max_documents": 10}, {"weight": 3.0}, 13, 4_000),
    ],
)
def test_caps_and_weights_are_applied_to_each_source(
    two_sources, small, large, documents, chars
):
    seen = sampled(
        sources_in(two_sources, ("small.jsonl", small), ("large.jsonl", large))
    )
    corpus = seen.size
    assert seen.is_whole
    assert (corpus.documents, corpus.text_bytes) == (250, 200 * 195 + 50_000)
    assert corpus.kept_documents == pytest.approx(documents)
    assert corpus.kept_chars == pytest.approx(chars)


def excluding(recipe, folder, *entries):
    (folder / "exclude.jsonl").write_text(
        "".join(json.dumps(entry) + "\n" for entry in entries)
    )
    plain = recipe.model_dump(mode="json")
    plain["ingest"]["exclude"] = str(folder / "exclude.jsonl")
    return Recipe.from_dict(plain)


@pytest.mark.parametrize("kind", ["whole", "sampled"])
def test_excluded_documents_are_not_counted(two_sources, monkeypatch, kind):
    rows = [
        json.dumps({"id": f"d{n}", "text": f"{n:05d}" + "é" * 95}) + "\n"
        for n in range(200)
    ]
    (two_sources / "small.jsonl").write_text("".join(rows))
    if kind == "sampled":
        monkeypatch.setattr(look, "_READ_BYTES", 10_000)
        monkeypatch.setattr(look, "_MIN_READ_BYTES", 10_000)
    recipe = sources_in(
        two_sources,
        ("small.jsonl", {"id": "id", "name": "small"}),
        ("large.jsonl", {"name": "large"}),
    )
    every = sampled(recipe).size
    half = [{"source": "small", "id": f"d{n}"} for n in range(100)]
    some = sampled(excluding(recipe, two_sources, *half, {"source": "large"})).size
    assert every.documents == pytest.approx(250, rel=0 if kind == "whole" else 0.2)
    assert some.documents == pytest.approx(100, rel=0 if kind == "whole" else 0.3)
    with pytest.raises(CorpusError) as error:
        sampled(
            excluding(recipe, two_sources, {"source": "small"}, {"source": "large"})
        )
    assert error.value.where == "ingest.exclude"


def made(**rows):
    """Return a sample in which each row stands for ten documents."""
    chars, chunks = np.array(rows["chars"]), np.array(rows["chunks"])
    stands_for = np.full(len(chars), 10.0)
    size = Amounts(
        chunks=float(stands_for @ chunks), kept_chars=float(stands_for @ chars)
    )
    return CorpusSample(size, True, ["x"] * len(chars), stands_for, chars, chunks, {})


def test_documents_of_many_chunks_are_met_more_often():
    seen = made(chars=[100, 100, 800], chunks=[1, 1, 8])
    assert seen.documents_of(100) == pytest.approx(30)  # every chunk
    assert seen.documents_of(50) == pytest.approx(10 * (0.5 + 0.5 + 1 - 0.5**8))
    assert seen.documents_of(0) == 0


def test_documents_without_room_for_negatives_are_foreseen():
    plain = {
        "run_dir": "r",
        "ingest": {"sources": [{"path": "p"}]},
        "tokenizer": {"train": 300},
    }
    seen = made(
        chars=[400, 1900, 2000, 4000, 4000], chunks=[1, 5, 5, 5, 1]
    )  # of 5 chunks 4 whole ones between, and a half

    def dropped(**compose):
        recipe = Recipe.from_dict(
            {**plain, "compose": {"target_tokens": 1000, **compose}}
        )
        return seen.dropped(recipe, chars_per_token=4.0)

    mean_chunk = 12_300 / 17
    assert 1900 + 4.5 * mean_chunk > 4000  # characters of a sequence
    assert dropped() == (10.0, 20.0)
    assert dropped(fit="paper") == (10.0, 0.0)
    assert dropped(target_tokens=1300) == (
        0.0,
        20.0,
    )  # 5,200: the shorter two fit with 3,255 characters of negatives
    assert dropped(target_tokens=1300, min_gap_tokens=250) == (0.0, 30.0)
