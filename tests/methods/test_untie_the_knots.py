"""Untie the Knots: cuts and shuffles that can be followed by hand."""

from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nextlong.methods import untie_the_knots
from nextlong.methods.base import CorpusArrays, DraftRequest


def documents_of(*chunk_tokens):
    counts = [len(own) for own in chunk_tokens]
    return CorpusArrays(
        content_hashes=np.arange(1, len(counts) + 1, dtype=np.uint64),
        tokens=np.array([sum(own) for own in chunk_tokens]),
        chunk_offsets=np.concatenate([[0], np.cumsum(counts)]),
        chunk_tokens=np.array([tokens for own in chunk_tokens for tokens in own]),
    )


def drafts(documents, target_tokens, *, seed=0, sequences=None, **options):
    request = DraftRequest(target_tokens=target_tokens, sequences=sequences, seed=seed)
    found = untie_the_knots.METHOD.draft(
        documents, untie_the_knots.UntieTheKnots(**options), request
    )
    return [(draft.documents.tolist(), draft.chunks.tolist()) for draft in found.drafts]


def interleaved(chunks, rng, **options):
    """(document, size) of each part."""
    labels, sizes = untie_the_knots._interleaved(
        chunks, untie_the_knots.UntieTheKnots(**options), rng
    )
    return tuple(zip(labels.tolist(), sizes.tolist(), strict=True))


@pytest.mark.parametrize(
    ("chunks", "parts", "sizes"),
    [(7, 3, [2, 2, 3]), (6, 3, [2, 2, 2]), (5, 2, [2, 3]), (2, 3, [1, 1]), (1, 3, [1])],
)
def test_even_parts(chunks, parts, sizes):
    found = interleaved([chunks], np.random.default_rng(0), parts=parts, cuts="even")
    assert found == tuple((0, size) for size in sizes)


def test_random_cuts_are_equally_likely():
    rng = np.random.default_rng(0)
    found = Counter(
        tuple(size for _, size in interleaved([5], rng, parts=3)) for _ in range(3000)
    )
    assert set(found) == {
        (1, 1, 3),
        (1, 2, 2),
        (1, 3, 1),
        (2, 1, 2),
        (2, 2, 1),
        (3, 1, 1),
    }
    assert all(400 < count < 600 for count in found.values())


def test_a_part_keeps_its_size_and_the_last_of_the_last_document_stays_last():
    rng = np.random.default_rng(0)
    assert interleaved([3, 1], rng, parts=2, cuts="even") == ((0, 1), (0, 2), (1, 1))
    found = Counter(interleaved([3, 5], rng, parts=2, cuts="even") for _ in range(3000))
    assert set(found) == {
        ((0, 1), (0, 2), (1, 2), (1, 3)),
        ((0, 1), (1, 2), (0, 2), (1, 3)),
        ((1, 2), (0, 1), (0, 2), (1, 3)),
    }
    assert all(900 < count < 1100 for count in found.values())


def test_the_last_document_gives_only_the_chunks_that_reach_the_end():
    # 8 tokens of the first; of the other 3 + 3 reach 13, whichever comes first.
    one, other = documents_of([4, 4], [3, 3, 3, 3]), documents_of([3, 3, 3, 3], [4, 4])
    for documents in (one, other):
        (found,) = drafts(documents, 13)
        last = found[0][-1]
        reached = sum(
            size for document, size in zip(*found, strict=True) if document == last
        )
        before = int(documents.tokens[1 - last])
        own = documents.chunk_tokens[documents.chunk_offsets[last] :][:reached]
        assert before + own[:-1].sum() < 13 <= before + own.sum()


def test_a_share_of_0_leaves_documents_whole_and_in_order():
    documents = documents_of([5, 5], [5, 5], [5, 5], [5, 5])
    found = drafts(documents, 20, share=0)
    assert [chunks for _, chunks in found] == [[2, 2], [2, 2]]
    assert sorted(document for own, _ in found for document in own) == [0, 1, 2, 3]


def test_a_share_is_that_of_shuffled_sequences():
    documents = documents_of(*[[1] * 4] * 4000)
    found = drafts(documents, 8, share=0.3, parts=2)
    plain = sum(chunks == [4, 4] for _, chunks in found)
    assert len(found) == 2000
    assert 1300 < plain < 1500


@given(
    st.lists(
        st.lists(st.integers(1, 9), min_size=1, max_size=6), min_size=1, max_size=12
    ),
    st.integers(1, 60),
    st.integers(2, 4),
    st.sampled_from(["random", "even"]),
    st.integers(0, 9),
)
def test_parts_make_up_whole_documents_but_the_last(
    chunk_tokens, enough, parts, cuts, seed
):
    documents = documents_of(*chunk_tokens)
    found = drafts(documents, enough, parts=parts, cuts=cuts, seed=seed)
    assert found == drafts(documents, enough, parts=parts, cuts=cuts, seed=seed)
    used = [document for own, _ in found for document in dict.fromkeys(own)]
    assert len(set(used)) == len(used)
    for own, chunks in found:
        assert min(chunks) >= 1
        reached = Counter()
        for document, size in zip(own, chunks, strict=True):
            reached[document] += size
        assert max(Counter(own).values()) <= parts
        assert all(
            count == len(chunk_tokens[document])
            for document, count in reached.items()
            if document != own[-1]
        )
        assert (
            sum(
                sum(chunk_tokens[document][:count])
                for document, count in reached.items()
            )
            >= enough
        )
