"""ICLM: near-duplicates, the graph, and walks that can be followed by hand."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from nextlong.methods import iclm
from nextlong.methods.base import CorpusArrays, DraftRequest, Neighbours

NONE = -1
F7, F9 = (float(np.float32(cosine)) for cosine in (0.7, 0.9))


def table(*rows):
    """(neighbours, cosines) of rows of (neighbour, cosine) pairs, padded."""
    width = max(map(len, rows))
    padded = [[*row, *[(NONE, 0.0)] * (width - len(row))] for row in rows]
    return (
        np.array([[neighbour for neighbour, _ in row] for row in padded]),
        np.array([[cosine for _, cosine in row] for row in padded], np.float32),
    )


def drafts(
    neighbours,
    cosines,
    tokens,
    enough,
    *,
    hashes=None,
    sequences=None,
    seed=0,
    k=10,
    max_similarity=None,
):
    """(documents, scores) of each draft."""
    count = len(neighbours)
    filled = neighbours >= 0
    documents = CorpusArrays(
        content_hashes=np.arange(count, dtype=np.uint64) if hashes is None else hashes,
        tokens=tokens,
        chunk_offsets=np.arange(count + 1),
        chunk_tokens=tokens,
        neighbours=Neighbours(
            queries=np.arange(count),
            offsets=np.concatenate([[0], np.cumsum(filled.sum(axis=1))]),
            documents=neighbours[filled],
            cosines=cosines[filled],
        ),
    )
    request = DraftRequest(target_tokens=enough, sequences=sequences, seed=seed)
    options = iclm.Iclm(neighbours=k, max_similarity=max_similarity)
    found = iclm.METHOD.draft(documents, options, request).drafts
    return [(draft.documents.tolist(), draft.scores.tolist()) for draft in found]


def path(neighbours, cosines, ranks=None, kept=None, k=10):
    ranks = np.arange(len(neighbours)) if ranks is None else np.array(ranks)
    kept = np.ones(len(neighbours), np.bool_) if kept is None else np.array(kept)
    return iclm._walk(neighbours, cosines, ranks, kept=kept, k=k)[0].tolist()


#   0 ──.9── 1        5 stands alone
#    ╲.5   ╱.8
#      2 ──.7── 3 ──.6── 4
CHAIN = table(
    [(1, 0.9), (2, 0.5)],
    [(0, 0.9), (2, 0.8)],
    [(1, 0.8), (3, 0.7)],
    [(2, 0.7), (4, 0.6)],
    [(3, 0.6)],
    [],
)

# 1, 2 and 3 have 0 for their nearest; 0 has 1 for its own.
STAR = table([(1, 0.9)], [(0, 0.9)], [(0, 0.8)], [(0, 0.7)])


def test_the_walk_starts_at_the_least_degree_and_goes_to_the_highest_weight():
    # Degrees 2 2 3 2 1 0. Alone: 5. Then 4, 3, 2; from 2 to 1 (.8), not to 0 (.5); then
    # 0.
    assert path(*CHAIN) == [5, 4, 3, 2, 1, 0]


def test_an_edge_counts_in_both_directions_and_a_stuck_walk_jumps_to_the_least_degree():
    # 0 never lists 2 or 3, yet the walk leaves it for 2; there it is stuck and jumps to
    # 3.
    assert path(*STAR) == [1, 0, 2, 3]


def test_each_document_has_the_weight_of_the_edge_to_it_and_none_after_a_jump():
    _, weights = iclm._walk(*CHAIN, np.arange(6), kept=np.ones(6, np.bool_), k=10)
    np.testing.assert_array_equal(
        weights, np.array([np.nan, np.nan, 0.6, 0.7, 0.8, 0.9], np.float32)
    )
    scores = {
        tuple(documents): scores
        for documents, scores in drafts(*CHAIN, np.full(6, 10), 20)
    }
    np.testing.assert_equal(
        scores, {(5, 4): [np.nan, np.nan], (3, 2): [np.nan, F7], (1, 0): [np.nan, F9]}
    )


def test_equal_degrees_are_decided_by_the_keyed_order():
    assert path(*STAR, ranks=[0, 3, 2, 1]) == [3, 0, 1, 2]


def test_equal_weights_are_decided_by_the_keyed_order():
    # Degrees 4 2 2 2 2: the walk starts at the first rank of the four, comes to 0, and
    # all weights there are equal.
    ring = table(
        [], [(2, 0.1), (0, 0.5)], [(1, 0.1), (0, 0.5)], [(4, 0.1), (0, 0.5)], [(3, 0.1), (0, 0.5)]
    )  # fmt: skip
    assert path(*ring, ranks=[4, 0, 1, 2, 3]) == [1, 0, 2, 3, 4]
    assert path(*ring, ranks=[4, 0, 3, 2, 1]) == [1, 0, 4, 3, 2]


def test_an_edge_has_the_larger_of_two_cosines():
    neighbours, cosines = table([(2, 0.75), (1, 0.5)], [(0, 0.625)], [])
    order, weights = iclm._walk(
        neighbours, cosines, np.arange(3), kept=np.ones(3, np.bool_), k=10
    )
    assert order.tolist() == [1, 0, 2]
    np.testing.assert_equal(weights.tolist(), [np.nan, 0.625, 0.75])


def test_k_counts_the_neighbours_that_stay():
    neighbours, cosines = table([(1, 0.9), (2, 0.8), (3, 0.7)], [], [], [])
    # With edges 0-1 and 0-2 the walk ends in a jump to the one of them that is left; 3
    # alone is where it starts.
    for kept, expected in (
        ([1, 1, 1, 1], [3, 1, 0, 2]),
        ([1, 0, 1, 1], [2, 0, 3]),
        ([0, 1, 1, 1], [1, 2, 3]),
    ):
        assert path(neighbours, cosines, kept=np.array(kept, np.bool_), k=2) == expected


def test_of_near_duplicates_the_first_in_keyed_order_stays():
    neighbours, cosines = table([(1, 0.99)], [(2, 0.97)], [(1, 0.97)], [(2, 0.9)])
    ranks = np.arange(4)
    kept = iclm._drop_near_duplicates(neighbours, cosines, ranks, max_similarity=0.95)
    assert kept.tolist() == [
        True,
        False,
        True,
        True,
    ]  # 2 is a copy of 1 only, and 1 is gone
    turned = iclm._drop_near_duplicates(
        neighbours, cosines, ranks[::-1], max_similarity=0.95
    )
    assert turned.tolist() == [True, False, True, True]
    middle = iclm._drop_near_duplicates(
        neighbours, cosines, np.array([1, 0, 2, 3]), max_similarity=0.95
    )
    assert middle.tolist() == [False, True, False, True]


def test_sequences_are_stretches_of_the_path_in_random_order():
    tens = np.full(6, 10)
    assert sorted(documents for documents, _ in drafts(*CHAIN, tens, 20)) == [
        [1, 0],
        [3, 2],
        [5, 4],
    ]
    assert len(drafts(*CHAIN, tens, 20, sequences=2)) == 2
    assert (
        len(drafts(*CHAIN, tens, 10, max_similarity=0.85)) == 5
    )  # one of 0 and 1 is gone


def plain_walk(edges, ranks):
    """The algorithm in plain words over a dictionary of (document, document): cosine."""
    near = {document: {} for document in range(len(ranks))}
    for (one, other), cosine in edges.items():
        near[one][other] = near[other][one] = cosine
    left, path = set(near), []
    while left:
        here = min(left, key=lambda document: (len(near[document]), ranks[document]))
        while here is not None:
            left.discard(here)
            path.append(here)
            free = [document for document in near[here] if document in left]
            here = max(
                free,
                key=lambda document: (near[path[-1]][document], -ranks[document]),
                default=None,
            )
    return path


@st.composite
def corpora(draw):
    count = draw(st.integers(1, 12))
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    cosines = np.triu(
        rng.permutation(count * count).reshape(count, count) / (count * count), 1
    )
    return (
        cosines + cosines.T,
        rng.integers(0, 2**63, count).astype(np.uint64),
        draw(st.integers(1, 4)),
        rng,
    )


def nearest(cosines, width):
    np.fill_diagonal(cosines, -1)
    ids = np.argsort(-cosines, axis=1, kind="stable")[:, :width]
    found = np.take_along_axis(cosines, ids, axis=1).astype(np.float32)
    return np.where(found < 0, NONE, ids), found


@given(corpora())
def test_the_walk_is_the_plain_one(corpus):
    cosines, _, k, rng = corpus
    ranks = rng.permutation(len(cosines))
    neighbours, found = nearest(cosines, k + 2)
    edges = {
        (min(row, near), max(row, near)): cosine
        for row in range(len(cosines))
        for near, cosine in zip(
            neighbours[row, :k].tolist(), found[row, :k].tolist(), strict=False
        )
        if near != NONE
    }
    assert path(neighbours, found, ranks=ranks, k=k) == plain_walk(edges, ranks)


@given(corpora(), st.integers(1, 400), st.sampled_from([None, 0.5, 0.9]))
def test_no_document_twice_and_the_order_of_documents_does_not_matter(
    corpus, needed, max_similarity
):
    cosines, hashes, k, rng = corpus
    tokens = rng.integers(0, 100, len(hashes))
    sequences = []
    for order in (np.arange(len(hashes)), rng.permutation(len(hashes))):
        neighbours, found = nearest(cosines[np.ix_(order, order)], k)
        made = drafts(
            neighbours,
            found,
            tokens[order],
            needed,
            hashes=hashes[order],
            seed=7,
            k=k,
            max_similarity=max_similarity,
        )
        used = [document for documents, _ in made for document in documents]
        assert len(set(used)) == len(used)
        assert all(tokens[order][documents].sum() >= needed for documents, _ in made)
        sequences.append([hashes[order][documents].tolist() for documents, _ in made])
    assert sequences[0] == sequences[1]
