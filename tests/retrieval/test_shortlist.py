"""The shortlist: BM25 by hand, and runs that embed only what is on it. What verify finds in them is in tests/verify."""

import math
from collections import Counter

import numpy as np
import pytest
from tests.support.counted import total

from nextlong import pipeline
from nextlong.artifacts.corpus_files import iter_chunk_texts
from nextlong.errors import RecipeError
from nextlong.retrieval.near_duplicates.shingles import hash_words
from nextlong.retrieval.sample import read_queries
from nextlong.retrieval.shortlist import (
    _CONTROL,
    _SHORTLISTED,
    describe_shortlist,
    judge_shortlist,
)

SHORT = (
    "mine.shortlist=bm25",
    "mine.shortlist_chunks=12",
    "compose.sequences=2",
    "compose.target_tokens=512",
)


@pytest.fixture(scope="module")
def made(recipe_for, started, tmp_path_factory):
    """The finished steps of a run with a shortlist, by name; read-only."""
    return pipeline.run(
        recipe_for(started(tmp_path_factory.mktemp("short") / "run"), *SHORT)
    )


def marks_of(done):
    return np.concatenate(
        [np.load(path) for path in done["shortlist"].files(".shortlist.npy")]
    )


def texts_of(done):
    shards = zip(
        done["ingest"].files(".documents.arrow"),
        done["chunk"].files(".chunks.arrow"),
        strict=True,
    )
    return [
        text
        for shard in shards
        for batch in iter_chunk_texts(*shard)
        for text in batch.texts
    ]


def bm25(texts, queries):
    """Return Lucene's BM25 of each text for some of them as queries, (q, n), written out word by word."""
    words = [Counter(hash_words(text).hashes.tolist()) for text in texts]
    mean = np.mean([counts.total() for counts in words])
    frequency = Counter(word for counts in words for word in counts)
    scores = np.zeros((len(queries), len(texts)))
    for place, query in enumerate(queries):
        for row, counts in enumerate(words):
            norm = 1.2 * (0.25 + 0.75 * counts.total() / mean)
            for word in words[query].keys() & counts.keys():
                idf = math.log(
                    1 + (len(texts) - frequency[word] + 0.5) / (frequency[word] + 0.5)
                )
                scores[place, row] += (
                    words[query][word] * idf * counts[word] / (counts[word] + norm)
                )
    return scores


def test_marked_are_the_best_chunks_by_bm25_and_the_meta_documents(made):
    texts, marks = texts_of(made), marks_of(made)
    starts = np.cumsum(
        [0, *(len(np.load(path)) for path in made["shortlist"].files(".shortlist.npy"))]
    )
    ids, exclude, _ = read_queries(made["meta_documents"].file(".meta_documents.npy"))
    rows = starts[ids >> 32] + (ids & 0xFFFFFFFF)
    own = exclude[:, 1] - exclude[:, 0]
    scores = bm25(texts, rows.tolist())
    ranks = np.ceil(12 / own + own).astype(int)
    least = np.array(
        [np.sort(row)[-rank] for row, rank in zip(scores, ranks, strict=True)]
    )[:, None]
    assert len(np.unique(own)) > 1
    assert (marks[(scores > least * (1 + 1e-5)).any(axis=0)] & _SHORTLISTED).all()
    assert (marks[rows] & _SHORTLISTED).all()
    others = np.setdiff1d(np.flatnonzero(marks & _SHORTLISTED), rows)
    assert (scores[:, others] >= least * (1 - 1e-5)).any(axis=0).all()


def test_only_marked_chunks_have_vectors_and_are_candidates(made):
    marks = marks_of(made)
    vectors = np.concatenate(
        [np.load(path) for path in made["embed"].files(".vectors.npy")]
    )
    np.testing.assert_array_equal(np.abs(vectors).max(axis=1) > 0, marks > 0)
    assert total(made["embed"], "chunks") == np.count_nonzero(marks) < len(marks) / 2
    assert {_SHORTLISTED, _CONTROL} <= set(marks.tolist())


def test_a_run_counts_whether_the_nearest_control_chunk_of_each_meta_chunk_is_shortlisted(
    made,
):
    marks = marks_of(made)
    vectors = np.concatenate(
        [np.load(path) for path in made["embed"].files(".vectors.npy")]
    ).astype(np.float64)
    starts = np.cumsum(
        [0, *(len(np.load(path)) for path in made["shortlist"].files(".shortlist.npy"))]
    )
    ids, exclude, _ = read_queries(made["meta_documents"].file(".meta_documents.npy"))
    nearest = []
    for query, (first, last) in zip(
        starts[ids >> 32] + (ids & 0xFFFFFFFF), exclude, strict=True
    ):
        cosines = np.where(marks & _CONTROL, vectors @ vectors[query], -1)
        cosines[starts[first >> 32] + (first & 0xFFFFFFFF) :][: last - first] = -1
        nearest += [int(cosines.argmax())] if cosines.max() > 0 else []
    assert total(made["mine"], "judged") == len(nearest) > 0
    assert total(made["mine"], "shortlisted") == np.count_nonzero(
        marks[nearest] & _SHORTLISTED
    )


def test_the_share_around_rank_100_is_estimated_without_bias(tmp_path):
    """The mean over control samples is the share in the full search, though only shortlisted and control chunks are searched."""
    rng = np.random.default_rng(0)
    cosines = rng.standard_normal((40, 3000))  # of queries and chunks
    ranked = np.argsort(-cosines, axis=1)
    ranks = np.argsort(ranked, axis=1)
    on_list = (ranks * rng.uniform(0, 4, ranks.shape)).min(axis=0) < 9
    weights = 0.01 * 0.99 ** np.arange(3000)
    truth = float(on_list[ranked].mean(axis=0) @ weights / weights.sum())
    estimates = []
    for draw in range(150):
        control = rng.random(3000) < 0.01
        np.save(
            path := tmp_path / f"{draw}.npy",
            _SHORTLISTED * on_list.astype(np.uint8) | _CONTROL * control,
        )
        is_embedded = on_list | control
        judged, shortlisted = judge_shortlist(
            [row[is_embedded[row]][:1024] for row in ranked], [path]
        )
        assert judged == 40
        estimates.append(shortlisted / judged)
    assert 0.2 < truth < 0.8
    assert (
        abs(np.mean(estimates) - truth)
        < 3 * np.std(estimates) / math.sqrt(len(estimates))
        < 0.03
    )


def test_the_search_of_vectors_that_are_mostly_empty_is_exact(made):
    assert "index" not in made


def test_a_run_says_how_much_was_embedded(made):
    marks = marks_of(made)
    share = f"bm25: {np.count_nonzero(marks)} of {len(marks):,} chunks embedded ({np.mean(marks > 0):.1%})"
    judged = total(made["mine"], "judged")
    told = f"has about {total(made['mine'], 'shortlisted') / judged:.0%} of the chunks around rank 100 of a meta-chunk"
    assert describe_shortlist(made).startswith(
        f"{share}; the shortlist {told} (estimated from {judged} meta-chunks"
    )
    assert describe_shortlist({}) == ""


@pytest.mark.thorough
def test_workers_write_the_same_bytes(made, recipe_for, started, hashes_of, tmp_path):
    pipeline.run(recipe_for(started(tmp_path / "run"), *SHORT, "executor=local"))
    assert hashes_of(tmp_path / "run") == hashes_of(made["ingest"].folder.parent)


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        (
            "compose.sequences=all",
            "compose.sequences=all, which extends every document; set compose.sequences to a number",
        ),
        (
            "compose.negatives=random-corpus",
            "compose.negatives=random-corpus; use other negatives, or remove mine.shortlist",
        ),
        (
            "search.index=IVF,Flat",
            "search.index=IVF,Flat would cluster badly; set search.index=exact",
        ),
    ],
)
def test_what_a_shortlist_cannot_serve_is_refused(
    recipe_for, tmp_path, setting, message
):
    with pytest.raises(RecipeError, match=message):
        pipeline.run(recipe_for(tmp_path / "run", *SHORT, setting))


def test_methods_without_a_search_of_chunks_ignore_a_shortlist(
    recipe_for, started, tmp_path
):
    done = pipeline.run(
        recipe_for(
            started(tmp_path / "run"),
            *SHORT,
            "compose.method=standard",
            "compose.sequences=all",
        )
    )
    assert "shortlist" not in done
