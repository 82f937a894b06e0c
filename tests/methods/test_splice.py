"""SPLiCe: trees that can be followed by hand."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nextlong.methods import splice
from nextlong.methods.base import CorpusArrays, DraftRequest, Neighbours
from nextlong.methods.vectors import Vectors
from nextlong.rng import shuffled

#       0      1      2      3      4      5      6
NEAR = [(1, 2, 3), (0, 2, 4), (5, 1, 0), (6, 0, 1), (1, 5, 6), (2, 4, 6), (3, 5, 4)]
COSINES = np.tile(np.array([0.75, 0.5, 0.25], np.float32), (7, 1))
TENS = np.full(7, 10)


class Searched:
    """Vectors by which the documents of least number are nearest."""

    def nearest(self, document, k, among):
        found = np.flatnonzero(among)[:k]
        return found, np.full(len(found), 0.125, np.float32)


def trees(k, enough, *, roots=range(7), near=NEAR, tokens=TENS, order="identity"):
    """(documents, scores) of each tree; documents start trees in the order `roots`."""
    hashes = np.arange(1, 8, dtype=np.uint64)
    hashes[[*roots]] = hashes[shuffled(hashes, seed=0, stage="splice")]
    listed = np.array(near) >= 0
    documents = CorpusArrays(
        content_hashes=hashes,
        tokens=np.array(tokens),
        chunk_offsets=np.arange(8),
        chunk_tokens=np.array(tokens),
        neighbours=Neighbours(
            queries=np.arange(7),
            offsets=np.append(0, np.cumsum(listed.sum(axis=1))),
            documents=np.array(near)[listed],
            cosines=COSINES[listed],
        ),
        vectors=Searched(),
    )
    request = DraftRequest(target_tokens=enough, sequences=None, seed=0)
    drafts = splice.METHOD.draft(
        documents, splice.Splice(neighbours=k, order=order), request
    ).drafts
    return [(draft.documents.tolist(), draft.scores.tolist()) for draft in drafts]


def test_k_of_1_makes_a_path_of_the_nearest_that_is_free():
    # 0, its nearest 1, of that the nearest that is free, 2. Then 3, 6, and of 6 not 3
    # but 5. 4 is left, too short.
    found = trees(1, 30)
    assert [documents for documents, _ in found] == [[0, 1, 2], [3, 6, 5]]
    np.testing.assert_equal(
        [scores for _, scores in found], [[np.nan, 0.75, 0.5], [np.nan, 0.75, 0.5]]
    )


def test_k_of_2_goes_breadth_first():
    # 0; its 1 and 2; then of 1 only 4 is free.
    (found,) = trees(2, 40)
    assert found[0] == [0, 1, 2, 4]
    np.testing.assert_equal(found[1], [np.nan, 0.75, 0.5, 0.25])


def test_a_tree_stops_where_it_is_full_and_leaves_the_rest_to_others():
    # 2 would be appended for 0 as well, but 0 and 1 are enough; it is the next root,
    # and finds 5.
    assert [
        documents for documents, _ in trees(2, 20, roots=[0, 2, 3, 1, 4, 5, 6])
    ] == [[0, 1], [2, 5], [3, 6]]


def test_where_neighbours_are_used_up_all_free_documents_are_searched_again():
    # Of 0 all neighbours are known to be free; of 1 only 4 is, so that another is
    # searched, 3, the first that is free.
    (found,) = trees(2, 60)
    assert found[0] == [0, 1, 2, 4, 3, 5]
    np.testing.assert_equal(found[1], [np.nan, 0.75, 0.5, 0.25, 0.125, 0.75])
    alone = [(-1, -1, -1)] * 7
    assert [documents for documents, _ in trees(1, 30, near=alone)] == [
        [0, 1, 2],
        [3, 4, 5],
    ]


def test_tokens_say_when_it_is_enough():
    assert [
        documents for documents, _ in trees(1, 30, tokens=[40, 5, 25, 1, 1, 1, 1])
    ] == [[0], [1, 2]]


def test_documents_of_a_tree_have_their_scores_in_any_order():
    (found,) = trees(2, 60, order="reverse")
    assert found[0] == [5, 3, 4, 2, 1, 0]
    np.testing.assert_equal(found[1], [0.75, 0.125, 0.25, 0.5, 0.75, np.nan])
    (mixed,) = trees(2, 60, order="random")
    assert mixed[0] != sorted(mixed[0]) == [0, 1, 2, 3, 4, 5]
    np.testing.assert_equal(
        dict(zip(*mixed, strict=True)), dict(zip(*found, strict=True))
    )


@given(
    st.integers(1, 25),
    st.integers(0, 2**32 - 1),
    st.integers(1, 400),
    st.integers(1, 3),
    st.sampled_from(["identity", "reverse", "random"]),
)
def test_no_document_twice_each_long_enough_and_the_order_of_documents_does_not_matter(
    count, seed, enough, k, order
):
    rng = np.random.default_rng(seed)
    cosines = rng.permutation(count * count).reshape(count, count).astype(np.float32)
    hashes, tokens = (
        rng.integers(0, 2**63, count).astype(np.uint64),
        rng.integers(0, 100, count),
    )
    sequences = []
    for places in (np.arange(count), rng.permutation(count)):
        near = np.argsort(
            -(cosines - np.diag(np.full(count, np.inf)))[np.ix_(places, places)], axis=1
        )[:, : count - 1]
        own = np.take_along_axis(cosines[np.ix_(places, places)], near, axis=1)
        documents = CorpusArrays(
            content_hashes=hashes[places],
            tokens=tokens[places],
            chunk_offsets=np.arange(count + 1),
            chunk_tokens=tokens[places],
            neighbours=Neighbours(
                queries=np.arange(count),
                offsets=np.arange(count + 1) * (count - 1),
                documents=near.ravel(),
                cosines=own.ravel(),
            ),
            vectors=Vectors(
                [], np.arange(count)
            ),  # every document is a neighbour of each
        )
        options = splice.Splice(neighbours=k, order=order)
        drafts = splice.METHOD.draft(
            documents,
            options,
            DraftRequest(target_tokens=enough, sequences=None, seed=5),
        ).drafts
        used = np.concatenate(
            [*(draft.documents for draft in drafts), np.empty(0, np.int64)]
        ).tolist()
        assert len(set(used)) == len(used)
        assert all(
            documents.tokens[draft.documents].sum() >= enough for draft in drafts
        )
        assert tokens.sum() - documents.tokens[used].sum() < enough
        sequences.append([hashes[places][draft.documents].tolist() for draft in drafts])
    assert sequences[0] == sequences[1]


def naive(roots, similarity, tokens, *, k, enough):
    """The paper's Algorithm 1, word by word: retrieval knows every document, and gives those that are not used."""
    unused, examples = list(range(len(tokens))), []
    while unused:
        root = next(root for root in roots if root in unused)
        unused.remove(root)
        example, queue = [root], [root]
        while queue and sum(tokens[document] for document in example) < enough:
            document = queue.pop(0)
            retrieved = sorted(unused, key=lambda other: -similarity[document][other])[
                :k
            ]
            for one in retrieved:
                if sum(tokens[document] for document in example) < enough:
                    example.append(one)
                    queue.append(one)
                    unused.remove(one)
        if sum(tokens[document] for document in example) >= enough:
            examples.append(example)
    return examples


@pytest.mark.parametrize("k", [1, 2, 3])
def test_short_lists_of_neighbours_give_the_sequences_of_the_papers_algorithm(
    tmp_path, k
):
    """Two clusters of documents, of each of which two or three neighbours are known."""
    rng = np.random.default_rng(7)
    count = 120
    vectors = (
        rng.normal(size=(count, 16))
        + 2 * rng.normal(size=(2, 16))[np.arange(count) % 2]
    )
    vectors = (vectors / np.linalg.norm(vectors, axis=1, keepdims=True)).astype(
        np.float16
    )
    paths = [tmp_path / f"{shard}.npy" for shard in range(4)]
    for path, rows in zip(paths, np.split(vectors, [50, 50, 90]), strict=True):
        np.save(path, rows)
    wide = vectors.astype(np.float32)
    similarity = wide @ wide.T
    listed = np.argsort(
        -np.where(np.eye(count, dtype=bool), -2, similarity), axis=1, kind="stable"
    )[:, :3]
    tokens = rng.integers(1, 30, count)
    documents = CorpusArrays(
        content_hashes=rng.integers(0, 2**63, count).astype(np.uint64),
        tokens=tokens,
        chunk_offsets=np.arange(count + 1),
        chunk_tokens=tokens,
        neighbours=Neighbours(
            queries=np.arange(count),
            offsets=np.arange(count + 1) * 3,
            documents=listed.ravel(),
            cosines=np.take_along_axis(similarity, listed, axis=1).ravel(),
        ),
        vectors=Vectors(paths, np.arange(count)),
    )
    drafts = splice.METHOD.draft(
        documents,
        splice.Splice(neighbours=k),
        DraftRequest(target_tokens=100, sequences=None, seed=3),
    ).drafts
    roots = shuffled(documents.content_hashes, seed=3, stage="splice").tolist()
    assert [draft.documents.tolist() for draft in drafts] == naive(
        roots, similarity, tokens, k=k, enough=100
    )
    cosines = np.concatenate([draft.scores[1:] for draft in drafts])
    assert np.isfinite(cosines).all()
