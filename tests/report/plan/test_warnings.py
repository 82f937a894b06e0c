"""What a plan warns of: what the run would, and what does not fit."""

import re
from dataclasses import replace
from types import SimpleNamespace

import pytest
from tests.support.planned import recipe_in, written

from nextlong import pipeline
from nextlong.corpus import look
from nextlong.errors import CorpusError
from nextlong.report.plan import warnings
from nextlong.report.plan.scenario import Scenario
from nextlong.runs.statistics import warnings as run_warnings


def test_a_plan_says_what_the_run_will_warn_of(recipe, tmp_path, monkeypatch):
    monkeypatch.setattr(
        run_warnings,
        "THRESHOLDS",
        replace(run_warnings.THRESHOLDS, stand_in_tokens=512),
    )
    told = " ".join(written(recipe_in(tmp_path, "compose.sequences=60")).split())
    assert "tokenizer.train=300" in told
    for name in ("stand-in-tokenizer", "small-corpus", "heavy-reuse"):
        assert f"[{name}]" in told
    assert re.search(r"\d+ of the corpus's 80 documents, \d\d%: ", told)


def test_only_text_that_is_used_hundreds_of_times_is_said_to_be_memorized(
    recipe, tmp_path
):
    asked = recipe_in(tmp_path)
    told = [
        run_warnings.heavy_reuse("often", asked, max_uses=max_uses)
        for max_uses in (199, 200)
    ]
    assert ["is memorized" in one.message for one in told] == [False, True]


def test_a_plan_for_a_large_corpus_warns_of_none_of_it(recipe, tmp_path):
    told = written(
        recipe_in(tmp_path, "compose.target_tokens=512"), Scenario(chunks=1e8)
    )
    assert "[small-corpus]" not in told
    assert "[heavy-reuse]" not in told
    assert "[stand-in-tokenizer]" not in told


def test_documents_that_no_sequence_holds_are_warned_of(recipe, tmp_path):
    """Of 80 texts 17 are longer than 256 characters, of those with at least four chunks all."""
    asked = recipe_in(tmp_path, "compose.target_tokens=64", "compose.min_meta_chunks=4")
    told = written(asked)
    count, documents = map(
        int,
        re.search(r"about (\d+) of the (\d+) documents [^(]*\(", told).groups(),
    )
    assert documents / 2 < count <= documents < 80
    assert "compose.target_tokens=64" in told
    assert "[many-dropped]" in told
    assert "[many-dropped]" not in written(recipe)
    assert "[many-dropped]" not in written(
        recipe_in(tmp_path, "compose.target_tokens=64", "compose.method=standard")
    )


def test_a_run_that_cannot_fit_is_warned_of(recipe, tmp_path, monkeypatch):
    monkeypatch.setattr(
        warnings.shutil, "disk_usage", lambda _: SimpleNamespace(free=1000)
    )
    monkeypatch.setattr(warnings, "memory_bytes", lambda: 1_000_000)
    told = written(recipe_in(tmp_path, "compose.method=standard"))
    assert "disk space: " in told
    assert "enough memory: " in told


def test_exact_search_of_very_many_is_warned_of(recipe, tmp_path):
    asked = recipe_in(tmp_path, "search.index=exact", "compose.sequences=all")
    for chunks, warned in ((1e3, False), (1e7, True)):
        told = written(asked, Scenario(workers=2, chunks=chunks))
        assert ("--set search.index=auto" in told) is warned


def test_documents_of_one_chunk_are_refused_as_by_the_run_and_in_a_sample_warned_of(
    recipe, tmp_path, monkeypatch
):
    asked = recipe_in(tmp_path, "compose.min_meta_chunks=4", "chunk.max_chars=100000")
    with pytest.raises(CorpusError) as of_the_run:
        pipeline.run(asked)
    with pytest.raises(CorpusError) as of_the_plan:
        written(asked)
    assert str(of_the_plan.value) in str(of_the_run.value)
    assert of_the_plan.value.where == "compose.min_meta_chunks"
    assert of_the_plan.value.value == "4"
    monkeypatch.setattr(look, "_MIN_READ_BYTES", 4_000)
    monkeypatch.setattr(look, "_READ_BYTES", 4_000)
    told = written(asked)
    assert "compose.min_meta_chunks=4" in told
    assert "compose.min_meta_chunks" not in written(
        recipe_in(tmp_path, "compose.method=standard", "chunk.max_chars=100000")
    )
