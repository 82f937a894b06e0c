"""KNN: a seed and its nearest."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from nextlong.methods import knn
from nextlong.methods.base import CorpusArrays, DraftRequest, Neighbours
from nextlong.rng import shuffled

TOKENS = np.array([10, 20, 30, 40, 50, 60])
SEEDS = np.array([2, 0, 5, 1])
NEIGHBOURS = [np.array(ids) for ids in ([0, 1, 4], [2, 5, 1], [4, 3, 0], [3, 4, 5])]


COSINES = [np.array([0.75, 0.5, 0.25], np.float32)] * 4


def follow(seeds, neighbours, cosines, tokens, *, enough, reuse, sequences=None):
    documents = CorpusArrays(
        content_hashes=np.arange(len(tokens), dtype=np.uint64),
        tokens=tokens,
        chunk_offsets=np.arange(len(tokens) + 1),
        chunk_tokens=tokens,
        neighbours=Neighbours(
            queries=seeds,
            offsets=np.cumsum([0, *map(len, neighbours)]),
            documents=np.concatenate(neighbours),
            cosines=np.concatenate(cosines),
        ),
    )
    request = DraftRequest(target_tokens=enough, sequences=sequences, seed=0)
    return knn.METHOD.draft(documents, knn.Knn(reuse=reuse), request)


def followed(enough, reuse, sequences=None):
    return follow(
        SEEDS,
        NEIGHBOURS,
        COSINES,
        TOKENS,
        enough=enough,
        sequences=sequences,
        reuse=reuse,
    )


def drafts(*asked):
    return [draft.documents.tolist() for draft in followed(*asked).drafts]


def test_a_seed_is_followed_by_its_nearest_until_there_is_enough():
    # 30+10+20 | 10+30+60 | 60 | 20+40
    assert drafts(60, "across-sequences") == [[2, 0, 1], [0, 2, 5], [5], [1, 3]]
    assert drafts(60, "across-sequences", 2) == [[2, 0, 1], [0, 2, 5]]


def test_a_seed_without_enough_neighbours_gives_no_sequence():
    # 30+10+20+50 = 110 and 10+30+60+20 = 120 are short of 125; 60+50+40 is not;
    # 20+40+50+60 is not
    assert drafts(125, "across-sequences") == [[5, 4, 3], [1, 3, 4, 5]]
    assert followed(125, "across-sequences").starved == 2
    assert followed(60, "across-sequences").starved == 0


def test_a_document_has_its_cosine_to_the_seed_whatever_was_passed_over():
    np.testing.assert_equal(
        [draft.scores.tolist() for draft in followed(60, "across-sequences").drafts],
        [[np.nan, 0.75, 0.5], [np.nan, 0.75, 0.5], [np.nan], [np.nan, 0.75]],
    )
    # 2 takes 0 and 1; of 3's neighbours only 5 is left.
    found = follow(
        np.array([2, 3]),
        [np.array([0, 1]), np.array([1, 0, 5])],
        [np.array([0.9, 0.8], np.float32), np.array([0.75, 0.5, 0.25], np.float32)],
        TOKENS,
        enough=60,
        reuse="never",
    )
    assert [draft.documents.tolist() for draft in found.drafts] == [[2, 0, 1], [3, 5]]
    np.testing.assert_equal(found.drafts[1].scores.tolist(), [np.nan, 0.25])


def test_never_gives_each_document_to_the_first_seed_that_reaches_it():
    # 2 takes 0 and 1; 0 is used, so no seed; 5 alone is 60; 1 is used.
    assert drafts(60, "never") == [[2, 0, 1], [5]]
    # 2 and 0 fall short and take nothing; 5 takes 4 and 3; 1 then has none left.
    assert drafts(125, "never") == [[5, 4, 3]]


@given(st.integers(1, 20), st.integers(0, 2**32 - 1), st.integers(1, 400))
def test_never_repeats_no_document_and_both_start_with_the_seed(count, seed, needed):
    rng = np.random.default_rng(seed)
    tokens = rng.integers(0, 100, count)
    seeds = shuffled(
        rng.integers(0, 2**63, count).astype(np.uint64), seed=seed, stage="knn"
    )
    neighbours = [
        rng.permutation(np.setdiff1d(np.arange(count), [own]))[: rng.integers(count)]
        for own in seeds
    ]
    cosines = [np.zeros(len(own), np.float32) for own in neighbours]
    for reuse in ("across-sequences", "never"):
        told = follow(seeds, neighbours, cosines, tokens, enough=needed, reuse=reuse)
        found = [draft.documents for draft in told.drafts]
        used = np.concatenate([*found, np.empty(0, np.int64)]).tolist()
        assert all(
            tokens[draft[:-1]].sum() < needed <= tokens[draft].sum() for draft in found
        )
        assert all(len(set(draft.tolist())) == len(draft) for draft in found)
        if reuse == "never":
            assert len(set(used)) == len(used)
        else:
            # every seed that can is there, in draw order
            whole = [
                own
                for own, near in zip(seeds, neighbours, strict=True)
                if tokens[[own, *near]].sum() >= needed
            ]
            assert [draft[0] for draft in found] == whole
            assert told.starved == count - len(whole)


def naive(similarity, tokens, seeds, *, enough, reuse):
    """Each seed with all documents by similarity, until the sequence is full."""
    used, sequences = set(), []
    for seed in seeds:
        if seed in used:
            continue
        sequence = [seed]
        for other in sorted(
            range(len(tokens)), key=lambda one, seed=seed: -similarity[seed][one]
        ):
            if sum(tokens[one] for one in sequence) >= enough:
                break
            if other != seed and other not in used:
                sequence.append(other)
        if sum(tokens[one] for one in sequence) >= enough:
            sequences.append(sequence)
            used |= set(sequence) if reuse == "never" else set()
    return sequences


@given(
    seed=st.integers(0, 9),
    tokens=st.lists(st.integers(1, 9), min_size=2, max_size=9),
    enough=st.integers(1, 40),
    reuse=st.sampled_from(["across-sequences", "never"]),
)
def test_knn_is_the_naive_loop_over_all_documents(seed, tokens, enough, reuse):
    rng = np.random.default_rng(seed)
    similarity, seeds = (
        rng.random((len(tokens), len(tokens))),
        rng.permutation(len(tokens)),
    )
    nearest = [
        order[order != own]
        for own, order in zip(
            seeds, np.argsort(-similarity, axis=1)[seeds], strict=True
        )
    ]
    cosines = [
        similarity[own][order].astype(np.float32)
        for own, order in zip(seeds, nearest, strict=True)
    ]
    options = {"enough": enough, "reuse": reuse}
    drafted = follow(seeds, nearest, cosines, np.array(tokens), **options)
    expected = naive(similarity.tolist(), tokens, seeds.tolist(), **options)
    assert [draft.documents.tolist() for draft in drafted.drafts] == expected
