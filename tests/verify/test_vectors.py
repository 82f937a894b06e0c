"""Scores of whole documents: those of SPLiCe's trees, of which the sequence alone says which document was found for which."""

import re
import shutil
from pathlib import Path

import numpy as np
import pytest

from damage import breaches, change_array, change_sequence, chunk_name, files
from nextlong import pipeline
from nextlong.schemas import NO_CHUNK
from nextlong.verify.run_files import StoredRun
from nextlong.verify.search import _check_document_scores

ALL = 100_000  # a sample of everything


def test_a_vector_that_is_not_the_encoders(run):
    def alter(vectors):
        vectors[3] = -vectors[3]

    change_array(files(run, "embed", ".vectors.npy")[0], alter)
    found = breaches(run, "vectors", sample=ALL)
    assert f"the vector of {chunk_name(run, 3)} has the cosine -1.0000" in found["vectors encoded again"]
    assert "vectors have unit length" not in found


def test_a_vector_that_is_too_short(run):
    def alter(vectors):
        vectors[3] /= 2

    change_array(files(run, "embed", ".vectors.npy")[0], alter)
    (told,) = re.findall(
        re.escape(chunk_name(run, 3)) + r" has the length ([\d.]+)",
        breaches(run, "vectors", sample=0)["vectors have unit length"],
    )
    assert float(told) == pytest.approx(0.5, abs=0.001)


@pytest.fixture(scope="module")
def shortlisted(recipe_for, tmp_path_factory):
    """A run that embeds a part of its chunks; read-only."""
    folder = tmp_path_factory.mktemp("shortlisted") / "run"
    short = ("mine.shortlist=bm25", "mine.shortlist_chunks=12", "compose.sequences=2", "compose.target_tokens=512")
    pipeline.run(recipe_for(folder, *short))
    return folder


def test_a_run_with_a_shortlist_is_as_it_must_be(shortlisted):
    assert breaches(shortlisted, sample=ALL) == {}


def test_a_vector_of_a_chunk_that_is_not_on_the_shortlist(shortlisted, tmp_path):
    run = Path(shutil.copytree(shortlisted, tmp_path / "run"))
    row = int(np.flatnonzero(np.load(files(run, "shortlist", ".shortlist.npy")[0]) == 0)[0])

    def alter(vectors):
        vectors[row] = np.eye(len(vectors[row]))[0]

    change_array(files(run, "embed", ".vectors.npy")[0], alter)
    found = breaches(run, "vectors", sample=0)
    assert f"the vector of {chunk_name(run, row)} has the length 1.0000" in found["vectors have unit length"]


SIZES = (
    "compose.method=splice",
    "compose.sequences=3",
    "compose.target_tokens=2048",
    "workers=1",
    "export.formats=[parquet]",
)


@pytest.fixture(scope="module")
def spliced(recipe_for, tmp_path_factory):
    """Runs whose trees are paths, and wide, and reversed; read-only."""
    folder = tmp_path_factory.mktemp("spliced") / "run"
    made = {}
    for name, options in (("path", ()), ("wide", ("splice.neighbours=3",)), ("reverse", ("splice.order=reverse",))):
        pipeline.run(recipe_for(folder, *SIZES, *options, f"name={name}"))
        made[name] = folder
    return made


def judged(folder, name):
    return _check_document_scores(StoredRun(Path(f"{folder}@{name}")))


@pytest.mark.parametrize("name", ["path", "wide"])
def test_the_scores_of_a_sound_run_pass(spliced, name):
    outcome = judged(spliced[name], name)
    assert (outcome.result, outcome.examples) == ("pass", [])
    assert outcome.checked > 10


def test_a_score_of_no_other_document_is_found(spliced, tmp_path, recipe_for):
    def alter(row):
        spans = [span for span, chunk in enumerate(row["chunk_id"]) if chunk != NO_CHUNK]
        scored = next(span for span in spans if not np.isnan(row["score"][span]))
        for span in spans:
            if row["score"][span] == row["score"][scored] and span != scored:
                row["score"][span] = -0.5
        row["score"][scored] = -0.5

    for neighbours, said in ((1, "the one before"), (3, "an earlier one of the sequence")):
        pipeline.run(recipe_for(tmp_path / str(neighbours), *SIZES, f"splice.neighbours={neighbours}"))
        run = Path(shutil.copytree(tmp_path / str(neighbours), tmp_path / f"altered-{neighbours}"))
        change_sequence(run, alter)
        outcome = _check_document_scores(StoredRun(run))
        assert outcome.breaches
        assert f"has the score -0.5000, the cosine to {said} is" in outcome.examples[0]


def test_trees_in_another_order_are_not_judged(spliced):
    assert (
        judged(spliced["reverse"], "reverse").skipped
        == "not checked: only the drafts record the document that they were found for"
    )
