"""LiteLong's drafts against a naive version, on documents of known lengths."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nextlong.methods import litelong
from nextlong.methods.base import CorpusArrays, DraftRequest, TopicHits
from nextlong.rng import keyed_hash, rng_for

SEED = 3


def corpus_of(tokens, hits, *, hashes=None):
    """Return the arrays of documents of these lengths, and the hits of each topic."""
    count = len(tokens)
    if hashes is None:
        hashes = np.arange(1, count + 1, dtype=np.uint64)
    none = np.empty(0, np.int64)
    return CorpusArrays(
        content_hashes=np.asarray(hashes, np.uint64),
        tokens=np.array(tokens),
        chunk_offsets=none,
        chunk_tokens=none,
        topic_hits=TopicHits(
            keys=np.arange(10, 10 + len(hits), dtype=np.uint64),
            offsets=np.cumsum([0, *map(len, hits)]),
            documents=np.array([one for own in hits for one in own], np.int64),
        ),
    )


def drafts_of(tokens, hits, *, enough, sequences=None, hashes=None, **options):
    drafted = litelong.METHOD.draft(
        corpus_of(tokens, hits, hashes=hashes),
        litelong.LiteLong(**options),
        DraftRequest(target_tokens=enough, sequences=sequences, seed=SEED),
    )
    return [draft.documents.tolist() for draft in drafted.drafts]


def naive(tokens, hits, *, enough, rows=4):
    """Return the drafts by a loop over topics and documents, as one would tell it."""
    keys = np.arange(10, 10 + len(hits), dtype=np.uint64)
    order = np.argsort(keyed_hash(keys, seed=SEED, stage="litelong"))
    made = []
    row = []
    for topic in order.tolist():
        rng = rng_for(SEED, "litelong.order", int(keys[topic]))
        documents = rng.permutation(np.array(sorted(set(hits[topic])), np.int64))
        begun_before = bool(row)
        own_rows = 0
        carried = set(row)
        for document in documents.tolist():
            if document in carried:
                continue
            row.append(document)
            if sum(tokens[one] for one in row) >= enough:
                made.append(row)
                row = []
                own_rows += 0 if begun_before else 1
                begun_before = False
            if own_rows == rows:
                break
        if own_rows == rows:
            row = []
    return made


@given(st.data())
def test_drafts_are_those_of_the_naive_loop(data):
    tokens = data.draw(st.lists(st.integers(1, 9), min_size=6, max_size=6))
    topic = st.lists(st.integers(0, 5), max_size=6, unique=True)
    hits = data.draw(st.lists(topic, max_size=5))
    rows = data.draw(st.integers(1, 3))
    enough = data.draw(st.integers(3, 12))
    found = drafts_of(tokens, hits, enough=enough, rows=rows)
    assert found == naive(tokens, hits, enough=enough, rows=rows)


def test_a_sequence_is_about_one_topic_where_its_documents_fill_it():
    found = drafts_of([5] * 6, [[0, 1, 2], [3, 4, 5]], enough=15)
    assert sorted(map(sorted, found)) == [[0, 1, 2], [3, 4, 5]]


def test_no_document_is_skipped_at_a_limit():
    (first, second) = drafts_of([10] * 4, [[0, 1, 2, 3]], enough=20)
    assert sorted(first + second) == [0, 1, 2, 3]


def test_a_topic_begins_at_most_so_many_sequences():
    assert len(drafts_of([10] * 8, [list(range(8))], enough=10)) == 4
    assert len(drafts_of([10] * 8, [list(range(8))], enough=10, rows=6)) == 6


def test_equal_contents_are_used_once():
    (draft,) = drafts_of([10] * 3, [[0, 1, 2]], enough=20, hashes=[7, 7, 8])
    assert len(draft) == 2
    assert 2 in draft


def test_a_document_of_two_topics_is_in_two_sequences_but_never_twice_in_one():
    found = drafts_of([10] * 3, [[0, 1], [0, 2]], enough=20)
    assert len(found) == 2
    assert all(0 in draft for draft in found)
    (both,) = drafts_of([10] * 3, [[0, 1], [0, 2]], enough=30)
    assert sorted(both) == [0, 1, 2]


def test_no_more_than_the_requested_sequences():
    assert len(drafts_of([10] * 6, [[0, 1], [2, 3]], enough=10, sequences=3)) == 3


@pytest.mark.parametrize("topics", ["clusters", "openai:small"])
def test_reports_name_the_origin_of_the_topics(topics):
    described = litelong.METHOD.describe(litelong.LiteLong(topics=topics))
    assert topics in described
