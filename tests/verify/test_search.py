from types import SimpleNamespace

import numpy as np

from damage import (
    breaches,
    change_array,
    change_rows,
    change_sequence,
    chunk_name,
    files,
    first_sequence,
    outcomes,
    read_batches,
    spans_of,
)
from nextlong.schemas import META, NEGATIVE, ROW_MASK, SHARD_BITS
from nextlong.verify.run_files import StoredRun
from nextlong.verify.search import check_search

ALL = 100_000  # a sample of everything


def test_a_wrong_score(run):
    def alter(row):
        row["score"][spans_of(row, NEGATIVE)[0]] -= 0.1

    change_sequence(run, alter)
    assert "the cosine is" in breaches(run, "search")["scores are cosines"]


def true_neighbours(run, meta, own):
    """Return ids and cosines of all chunks outside `own`, nearest first."""
    shards = [np.load(path).astype(np.float32) for path in files(run, "embed", ".vectors.npy")]
    vectors = np.concatenate(shards)
    ids = np.concatenate([(shard << SHARD_BITS) + np.arange(len(rows)) for shard, rows in enumerate(shards)])
    scores = vectors @ vectors[np.flatnonzero(ids == meta)[0]]
    order = np.argsort(-scores, kind="stable")
    order = order[~np.isin(ids[order], own)]
    return ids[order], scores[order]


def breach_of_candidates(run, meta, chunk, score, *, place):
    """Drop the nearest candidate of a meta-chunk and insert another at a place; return what the check says."""

    def alter(rows):
        for row in (row for row in rows if row["chunk_id"] == meta):
            row["neighbour_ids"], row["scores"] = row["neighbour_ids"][1:], row["scores"][1:]
            row["neighbour_ids"].insert(place, int(chunk))
            row["scores"].insert(place, float(score))

    for path in files(run, "mine", ".candidates.arrow"):
        if meta in [chunk for batch in read_batches(path)[0] for chunk in batch.column("chunk_id").to_pylist()]:
            change_rows(path, alter)
    found = breaches(run, sample=ALL)
    assert set(found) == {"candidates searched again"}
    return found["candidates searched again"]


def test_a_candidate_replaced_by_a_farther_one(run):
    row = first_sequence(run)
    own = [row["chunk_id"][span] for span in spans_of(row, META)]
    ids, scores = true_neighbours(run, own[0], own)
    said = breach_of_candidates(run, own[0], ids[100], scores[100], place=ALL)
    assert f"the nearest by brute force is {chunk_name(run, ids[0])}" in said


def test_a_candidate_of_the_own_document(run):
    row = first_sequence(run)
    own = [row["chunk_id"][span] for span in spans_of(row, META)]
    ids, scores = true_neighbours(run, own[0], own[:1])
    said = breach_of_candidates(run, own[0], own[1], scores[ids == own[1]][0], place=0)
    assert f"has the candidate {chunk_name(run, own[1])}, of its own document" in said


def test_the_chunk_right_behind_the_document_is_searched(run):
    sequence = next(StoredRun(run).sequences())
    meta, behind = int(sequence.chunk[sequence.known(META)[0]]), int(sequence.doc_stop[sequence.known(META)[0]])

    def alter(vectors):
        vectors[behind & ROW_MASK] = vectors[meta & ROW_MASK]

    change_array(files(run, "embed", ".vectors.npy")[meta >> SHARD_BITS], alter)
    outcome = outcomes(run, "search", sample=ALL)["candidates searched again"]
    where = f"meta-chunk {chunk_name(run, meta)} of sequence 0: rank 0 is "
    (said,) = (example for example in outcome.examples if example.startswith(where))
    assert f"the nearest by brute force is {chunk_name(run, behind)} with 1.000" in said


def test_a_negative_that_is_not_the_nearest_free_one(run):
    row = first_sequence(run)
    own = [row["chunk_id"][span] for span in spans_of(row, META)]
    span = next(span for span in reversed(spans_of(row, NEGATIVE)) if row["group"][span] == 0)
    ids, scores = true_neighbours(run, own[0], own)

    def alter(row):
        row["chunk_id"][span], row["score"][span] = int(ids[40]), float(scores[40])

    change_sequence(run, alter)
    assert (
        "is unused and nearer to meta-chunk" in breaches(run, "search", sample=ALL)["negatives are the nearest unused"]
    )


def test_an_approximate_index_may_miss_its_recall_by_three_standard_errors(run):
    def halve(rows):
        for row in rows[::2]:
            row["neighbour_ids"], row["scores"] = row["neighbour_ids"][50:], row["scores"][50:]

    for path in files(run, "mine", ".candidates.arrow"):
        change_rows(path, halve)

    def recall(promised):
        artefacts = StoredRun(run, sample=ALL)
        manifest = {"parts": [{"counts": {"recall": promised}}]}
        artefacts.steps["tune"] = SimpleNamespace(manifest=manifest, files=lambda _: [])
        (outcome,) = (one for one in check_search(artefacts) if one.check.startswith("recall"))
        return outcome

    outcome = recall(0.0)
    mean = float(outcome.note.split(",")[0])
    assert 0.5 < mean < 1
    error = ((1 - mean) * (mean - 0.5) / outcome.checked) ** 0.5  # of each list all was found, or half
    assert [recall(mean + errors * error).breaches for errors in (2, 4)] == [0, 1]
