"""Standard: stretches of one shuffle."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from nextlong.methods import standard
from nextlong.methods.base import CorpusArrays, DraftRequest, stretches
from nextlong.rng import shuffled


def test_stretches_are_cut_where_they_just_reach_the_length():
    order, tokens = np.array([4, 0, 2, 1, 3]), np.array([30, 5, 70, 40, 60])
    # 60 + 30 + 70 | 5 + 40 is short
    assert [piece.tolist() for piece in stretches(order, tokens, enough=100)] == [
        [4, 0, 2]
    ]
    # 60 + 30 = 90 is just enough | 70 + 5 + 40
    assert [piece.tolist() for piece in stretches(order, tokens, enough=90)] == [
        [4, 0],
        [2, 1, 3],
    ]
    assert [
        piece.tolist() for piece in stretches(order, tokens, enough=90, sequences=1)
    ] == [[4, 0]]
    assert stretches(order, tokens, enough=206) == []
    assert stretches(order[:0], tokens, enough=1) == []


def test_another_seed_shuffles_differently():
    hashes = np.arange(50, dtype=np.uint64)
    one, other = (
        shuffled(hashes, seed=seed, stage="standard").tolist() for seed in (1, 2)
    )
    assert one != other
    assert sorted(one) == sorted(other) == list(range(50))


def drafts_of(hashes, tokens, enough, sequences):
    documents = CorpusArrays(
        content_hashes=hashes,
        tokens=tokens,
        chunk_offsets=np.arange(len(tokens) + 1),
        chunk_tokens=tokens,
    )
    request = DraftRequest(target_tokens=enough, sequences=sequences, seed=3)
    return [
        draft.documents
        for draft in standard.METHOD.draft(
            documents, standard.METHOD.Options(), request
        ).drafts
    ]


@given(
    st.dictionaries(st.integers(0, 2**64 - 1), st.integers(0, 500), max_size=40),
    st.integers(1, 900),
    st.one_of(st.none(), st.integers(1, 5)),
    st.randoms(use_true_random=False),
)
def test_no_document_twice_each_long_enough_and_the_order_of_documents_does_not_matter(
    corpus, needed, most, random
):
    found = []
    for _ in range(2):
        documents = list(corpus.items())
        random.shuffle(documents)
        hashes = np.array([content for content, _ in documents], np.uint64)
        tokens = np.array([length for _, length in documents], np.int64)
        drafts = drafts_of(hashes, tokens, needed, most)
        found.append([hashes[draft].tolist() for draft in drafts])
        used = np.concatenate([*drafts, np.empty(0, np.int64)])
        assert len(set(used.tolist())) == len(used)
        assert all(
            tokens[draft[:-1]].sum() < needed <= tokens[draft].sum() for draft in drafts
        )
        if most is None:
            assert tokens.sum() - tokens[used].sum() < needed
    assert found[0] == found[1]
