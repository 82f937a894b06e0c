"""Vectors, candidates and scores that are altered are found out."""

import json
import re
import shutil
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from tests.support import check_names
from tests.support.damage import (
    breaches,
    change_array,
    change_recipe,
    change_rows,
    change_sequence,
    chunk_name,
    files,
    first_sequence,
    outcomes,
    read_batches,
    spans_of,
)

from nextlong import pipeline
from nextlong.schemas import META, NEGATIVE, NO_CHUNK, ROW_MASK, SHARD_BITS
from nextlong.verify.run_files import StoredRun
from nextlong.verify.search import _check_document_scores, check_search

ALL = 100_000  # a sample of everything


def test_a_wrong_score(run):
    def alter(row):
        row["score"][spans_of(row, NEGATIVE)[0]] -= 0.1

    change_sequence(run, alter)
    assert "cosine is" in breaches(run, "search")[check_names.SCORES]


def true_neighbours(run, meta, own):
    """Return ids and cosines of all chunks outside `own`, nearest first."""
    shards = [
        np.load(path).astype(np.float32) for path in files(run, "embed", ".vectors.npy")
    ]
    vectors = np.concatenate(shards)
    ids = np.concatenate(
        [
            (shard << SHARD_BITS) + np.arange(len(rows))
            for shard, rows in enumerate(shards)
        ]
    )
    scores = vectors @ vectors[np.flatnonzero(ids == meta)[0]]
    order = np.argsort(-scores, kind="stable")
    order = order[~np.isin(ids[order], own)]
    return ids[order], scores[order]


def breach_of_candidates(run, meta, chunk, score, *, place):
    """Drop the nearest candidate of a meta-chunk and insert another at a place; return what the check says."""

    def alter(rows):
        for row in (row for row in rows if row["chunk_id"] == meta):
            row["neighbour_ids"], row["scores"] = (
                row["neighbour_ids"][1:],
                row["scores"][1:],
            )
            row["neighbour_ids"].insert(place, int(chunk))
            row["scores"].insert(place, float(score))

    for path in files(run, "mine", ".candidates.arrow"):
        if meta in [
            chunk
            for batch in read_batches(path)[0]
            for chunk in batch.column("chunk_id").to_pylist()
        ]:
            change_rows(path, alter)
    found = breaches(run, sample=ALL)
    assert set(found) == {"candidates searched again"}
    return found["candidates searched again"]


def test_a_candidate_replaced_by_a_farther_one(run):
    row = first_sequence(run)
    own = [row["chunk_id"][span] for span in spans_of(row, META)]
    ids, scores = true_neighbours(run, own[0], own)
    said = breach_of_candidates(run, own[0], ids[100], scores[100], place=ALL)
    assert f"brute force is {chunk_name(run, ids[0])}" in said


def test_a_candidate_of_the_own_document(run):
    row = first_sequence(run)
    own = [row["chunk_id"][span] for span in spans_of(row, META)]
    ids, scores = true_neighbours(run, own[0], own[:1])
    said = breach_of_candidates(run, own[0], own[1], scores[ids == own[1]][0], place=0)
    assert f"the candidate {chunk_name(run, own[1])}, of its own" in said


def test_the_chunk_right_behind_the_document_is_searched(run):
    sequence = next(StoredRun(run).sequences())
    meta, behind = (
        int(sequence.chunk[sequence.known(META)[0]]),
        int(sequence.doc_stop[sequence.known(META)[0]]),
    )

    def alter(vectors):
        vectors[behind & ROW_MASK] = vectors[meta & ROW_MASK]

    change_array(files(run, "embed", ".vectors.npy")[meta >> SHARD_BITS], alter)
    outcome = outcomes(run, "search", sample=ALL)["candidates searched again"]
    where = f"meta-chunk {chunk_name(run, meta)} of sequence 0: rank 0 is "
    (said,) = (example for example in outcome.examples if example.startswith(where))
    assert f"brute force is {chunk_name(run, behind)} with 1.000" in said


def test_a_negative_that_is_not_the_nearest_free_one(run):
    row = first_sequence(run)
    own = [row["chunk_id"][span] for span in spans_of(row, META)]
    span = next(
        span for span in reversed(spans_of(row, NEGATIVE)) if row["group"][span] == 0
    )
    ids, scores = true_neighbours(run, own[0], own)

    def alter(row):
        row["chunk_id"][span], row["score"][span] = int(ids[40]), float(scores[40])

    change_sequence(run, alter)
    assert "is unused" in breaches(run, "search", sample=ALL)[check_names.NEAREST]


def test_an_extended_run_without_vectors_has_nothing_to_search(shared_run):
    stored = StoredRun(shared_run)
    del stored.steps["embed"]
    assert {one.not_needed for one in check_search(stored)} == {
        "this run has no vectors"
    }


def test_negatives_that_are_not_mixed_as_the_recipe_says(recipe_for, started, tmp_path):
    sizes = ("compose.sequences=4", "compose.target_tokens=1024", "mine.candidates=60")
    pipeline.run(recipe_for(started(tmp_path / "run"), *sizes))

    def hard_share(negatives):
        change_recipe(tmp_path / "run", "compose", "negatives", negatives)
        named = (one.check for one in check_search(StoredRun(tmp_path / "run")))
        if "share of hard negatives" not in named:
            return None
        return outcomes(tmp_path / "run", "search")["share of hard negatives"]

    assert hard_share("top") is None
    found = hard_share("mixed")
    assert found.breaches == 1
    assert found.checked > 20


def test_an_approximate_index_may_miss_its_recall_by_three_standard_errors(run):
    def halve(rows):
        for row in rows[::2]:
            row["neighbour_ids"], row["scores"] = (
                row["neighbour_ids"][50:],
                row["scores"][50:],
            )

    for path in files(run, "mine", ".candidates.arrow"):
        change_rows(path, halve)

    def recall(promised):
        artefacts = StoredRun(run, sample=ALL)
        manifest = {"parts": [{"counts": {"recall": promised}}]}
        artefacts.steps["tune"] = SimpleNamespace(manifest=manifest, files=lambda _: [])
        (outcome,) = (
            one for one in check_search(artefacts) if one.check.startswith("recall")
        )
        return outcome

    outcome = recall(0.0)
    mean = float(outcome.note.split(" ")[0])
    assert 0.5 < mean < 1
    assert "5th percentile 0.5" in outcome.note
    assert "worst 0.5" in outcome.note
    error = (
        (1 - mean) * (mean - 0.5) / outcome.checked
    ) ** 0.5  # of each list all was found, or half
    assert [recall(mean + errors * error).breaches for errors in (2, 4)] == [0, 1]


def test_a_vector_that_is_not_the_encoders(run):
    def alter(vectors):
        vectors[3] = -vectors[3]

    change_array(files(run, "embed", ".vectors.npy")[0], alter)
    found = breaches(run, "vectors", sample=ALL)
    again = found[check_names.VECTORS_AGAIN]
    assert f"{chunk_name(run, 3)} has the cosine -1.0000" in again
    assert check_names.UNIT_LENGTH not in found


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
def shortlisted(recipe_for, started, tmp_path_factory):
    """A run that embeds a part of its chunks; read-only."""
    folder = tmp_path_factory.mktemp("shortlisted") / "run"
    short = (
        "mine.shortlist=bm25",
        "mine.shortlist_chunks=12",
        "compose.sequences=2",
        "compose.target_tokens=512",
    )
    pipeline.run(recipe_for(started(folder), *short))
    return folder


def test_a_run_with_a_shortlist_is_as_it_must_be(shortlisted):
    assert breaches(shortlisted, sample=ALL) == {}


def test_a_vector_of_a_chunk_that_is_not_on_the_shortlist(shortlisted, tmp_path):
    run = Path(shutil.copytree(shortlisted, tmp_path / "run"))
    row = int(
        np.flatnonzero(np.load(files(run, "shortlist", ".shortlist.npy")[0]) == 0)[0]
    )

    def alter(vectors):
        vectors[row] = np.eye(len(vectors[row]))[0]

    change_array(files(run, "embed", ".vectors.npy")[0], alter)
    found = breaches(run, "vectors", sample=0)
    assert (
        f"vector of {chunk_name(run, row)} has the length 1.0000"
        in found[check_names.UNIT_LENGTH]
    )


SIZES = (
    "compose.method=splice",
    "compose.sequences=3",
    "compose.target_tokens=2048",
    "workers=1",
    "export.formats=[parquet]",
)


@pytest.fixture(scope="module")
def spliced(recipe_for, started, tmp_path_factory):
    """Runs whose trees are paths, and wide, and reversed; read-only."""
    folder = started(tmp_path_factory.mktemp("spliced") / "run")
    made = {}
    for name, options in (
        ("path", ()),
        ("wide", ("splice.neighbours=3",)),
        ("reverse", ("splice.order=reverse",)),
    ):
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


def test_a_score_of_no_other_document_is_found(spliced, tmp_path):
    def alter(row):
        spans = [
            span for span, chunk in enumerate(row["chunk_id"]) if chunk != NO_CHUNK
        ]
        scored = next(span for span in spans if not np.isnan(row["score"][span]))
        for span in spans:
            if row["score"][span] == row["score"][scored] and span != scored:
                row["score"][span] = -0.5
        row["score"][scored] = -0.5

    for name, said in (
        ("path", "the previous document"),
        ("wide", "an earlier document of the sequence"),
    ):
        run = Path(shutil.copytree(spliced[name], tmp_path / name))
        (run / "run.json").write_text(json.dumps({"variant": name}))
        change_sequence(run, alter)
        outcome = judged(run, name)
        assert outcome.breaches
        assert f"score -0.5000, the cosine to {said} is" in outcome.examples[0]


def test_trees_in_another_order_are_not_judged(spliced):
    assert "the drafts" in judged(spliced["reverse"], "reverse").skipped
