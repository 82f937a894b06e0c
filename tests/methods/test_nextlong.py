"""NExtLong's drafts, in hand-written integers."""

from fractions import Fraction
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.arrow_files import write_arrow
from tests.support.stored_vectors import save_shards, unit_rows

from nextlong import schemas
from nextlong.methods.candidates import (
    Candidates,
    Drafting,
    draft_prefixes,
    mixed,
    ordered_candidates,
    read_candidates,
)
from nextlong.recipe.keys import Compose, Mine
from nextlong.rng import rng_for


@pytest.mark.parametrize(
    ("document_chars", "meta_chunks", "expected"),
    [
        (200, 2, 4),  # (600 - 200) / (2 · 50) = 4
        (199, 2, 5),  # 4.01, rounded up
        (210, 2, 4),  # 3.9
        (580, 1, 1),  # 0.4
        (600, 3, 1),  # 0: at least 1
        (5000, 9, 1),  # negative: at least 1
    ],
)
def test_k_is_what_is_drafted_beyond_the_document_per_meta_chunk(
    document_chars, meta_chunks, expected
):
    lists = [np.arange(10) + 10 * place for place in range(meta_chunks)]
    candidates = Candidates(lists, [], [np.full(10, 1)] * meta_chunks)
    how = drafting(Compose(fit="paper", draft_factor=1.5), max_chars=50)
    # Q = 600 characters
    taken = draft_prefixes(
        candidates, how, target_chars=400.0, document_chars=document_chars
    )
    assert taken.lengths == [expected] * meta_chunks


def test_k_of_the_papers_setting():
    # 131,072 tokens of 4 characters, w = 1.5, s = 2,048; a document of 5 chunks and
    # 9,000 characters
    lists = [np.arange(100) + 100 * place for place in range(5)]
    candidates, how = (
        Candidates(lists, [], [np.full(100, 1)] * 5),
        drafting(Compose(fit="paper"), max_chars=2048),
    )
    taken = draft_prefixes(
        candidates, how, target_chars=131_072 * 4.0, document_chars=9_000
    )
    assert taken.lengths == [76] * 5  # (786,432 - 9,000) / 10,240 = 75.92


def drafting(compose, mine=None, *, max_chars=0, seed=0):
    return Drafting(compose, mine or Mine(), 0, 0.0, max_chars, 1024, seed)


def draft(ids, chars=None, *, fit, needed=0, drafted=0, negatives=0):
    """Draft a document of no characters of its own, of which `needed` fill the sequence and `drafted` are drafted."""
    ids = [np.array(row, np.int64) for row in ids]
    chars = [
        np.full(len(row), 10)
        if chars is None
        else np.array([chars[i] for i in row.tolist()])
        for row in ids
    ]
    if fit == "paper":
        needed = drafted = negatives * len(ids)
    compose = SimpleNamespace(fit=fit, draft_factor=Fraction(drafted, needed))
    how = drafting(compose, max_chars=1)
    taken = draft_prefixes(
        Candidates(ids, [], chars), how, target_chars=needed, document_chars=0
    )
    return taken.lengths


@pytest.mark.parametrize(
    ("candidates", "negatives", "expected"),
    [
        ([[1, 2, 3, 4], [5, 6, 7]], 2, [2, 2]),
        ([[1, 2, 3, 4], [2, 1, 5, 6]], 2, [2, 4]),  # 2 and 1 are taken
        ([[1, 2, 3], [1, 2, 3], [1, 2, 3, 4]], 1, [1, 2, 3]),
        ([[1, 2], [2, 1]], 2, [2, 2]),  # none left: the whole list
        ([[1], [2]], 5, [1, 1]),
        ([[], [1]], 1, [0, 1]),
    ],
)
def test_paper_prefixes_hold_k_that_no_earlier_meta_chunk_has(
    candidates, negatives, expected
):
    assert draft(candidates, fit="paper", negatives=negatives) == expected


@pytest.mark.parametrize(
    ("candidates", "needed", "drafted", "expected"),
    [
        # Each of two needs 20 characters and drafts 30; all candidates have 10.
        ([[1, 2, 3, 4], [5, 6, 7, 8]], 40, 60, [3, 3]),
        # The first will presumably use 1 and 2, so the second looks past them; 3 may be
        # free.
        ([[1, 2, 3, 4], [2, 1, 5, 6, 7, 8]], 40, 60, [3, 5]),
        ([[1, 2, 3, 4], [3, 1, 5, 6, 7, 8]], 40, 60, [3, 4]),
        # 25 of 50 each are 3 candidates, rounded up.
        ([[1, 2, 3, 4], [5, 6, 7, 8]], 50, 50, [3, 3]),
        ([[1, 2], [1, 2, 3]], 40, 60, [2, 3]),  # too few: the whole list
        ([[], []], 40, 60, [0, 0]),
        # The document alone nearly fills the sequence: one candidate to cut from.
        ([[1, 2], [3, 4]], 1, 2, [1, 1]),
    ],
)
def test_exact_prefixes_hold_the_drafted_characters(
    candidates, needed, drafted, expected
):
    assert draft(candidates, fit="exact", needed=needed, drafted=drafted) == expected


def test_exact_prefixes_count_characters_not_chunks():
    chars = {1: 100, 2: 3, 3: 3, 4: 100}
    assert draft([[2, 3, 1, 4]], chars, fit="exact", needed=50, drafted=75) == [3]
    assert draft([[1, 2, 3, 4]], chars, fit="exact", needed=50, drafted=75) == [1]


@given(
    candidates=st.lists(
        st.lists(st.integers(0, 30), unique=True, max_size=20), min_size=1, max_size=6
    ),
    negatives=st.integers(1, 8),
    needed=st.integers(1, 400),
    more=st.integers(0, 300),
    fit=st.sampled_from(["exact", "paper"]),
)
def test_prefixes_are_as_short_as_they_may_be(candidates, negatives, needed, more, fit):
    lengths = draft(
        candidates, fit=fit, needed=needed, drafted=needed + more, negatives=negatives
    )
    taken = set()
    for ids, length in zip(candidates, lengths, strict=True):
        free = [number for number in ids[:length] if number not in taken]
        enough = (
            negatives if fit == "paper" else -(-(needed + more) // len(candidates)) / 10
        )
        assert length == len(ids) or len(free) >= enough
        assert (
            length == 0
            or len([number for number in ids[: length - 1] if number not in taken])
            < enough
        )
        used = negatives if fit == "paper" else -(-needed // len(candidates)) / 10
        for number in ids:
            if len([one for one in free if one in taken]) >= used:
                break
            taken.add(number)


SECOND = 1 << schemas.SHARD_BITS  # chunk 0 of shard 1
META = np.array([(1, 0xAB, 0, 2, 30)], schemas.META_DOCUMENTS)[
    0
]  # chunks 0 and 1, of 10 and 20 characters


@pytest.fixture
def corpus(tmp_path):
    """Shards of 6 and 4 chunks, the n-th of 10 · (n + 1) characters, with a vector each."""
    chunks = []
    for shard, rows in enumerate((6, 4)):
        sizes = 10 * np.arange(1, rows + 1)
        ends = np.cumsum(sizes)
        columns = [np.zeros(rows), ends - sizes, ends, np.zeros(rows, bool)]
        chunks.append(
            write_arrow(tmp_path / f"{shard}.chunks.arrow", schemas.CHUNKS, columns)
        )
    vectors = unit_rows(10)
    return {
        "chunks": chunks,
        "vectors": save_shards(tmp_path, vectors[:6], vectors[6:]),
    }


RETRIEVED = Candidates(
    [np.array([2, 3, SECOND, SECOND + 1]), np.array([4, 5])],
    [np.array([0.9, 0.7, 0.5, 0.3], np.float32), np.array([0.8, 0.2], np.float32)],
    [np.array([30, 40, 10, 20]), np.array([50, 60])],
)


def ordered(corpus, negatives, *, reorder_top=3, max_similarity=None, seed=0):
    compose, mine = (
        Compose(negatives=negatives),
        Mine(reorder_top=reorder_top, max_similarity=max_similarity),
    )
    return ordered_candidates(
        META, RETRIEVED, drafting(compose, mine, seed=seed), 80.0, **corpus
    )


def test_lists_are_divided_among_meta_documents_and_measured(corpus, tmp_path):
    lists = [[0, 1, 2], [[2, SECOND + 3], [3], [0, 1]], [[0.9, 0.7], [0.5], [0.4, 0.3]]]
    path = write_arrow(tmp_path / "candidates.arrow", schemas.CANDIDATES, lists)
    first, second = read_candidates(path, np.array([1, 2]), corpus["chunks"])
    assert [ids.tolist() for ids in first.ids] == [[2, SECOND + 3]]
    assert [chars.tolist() for chars in first.chars] == [[30, 40]]
    assert [ids.tolist() for ids in second.ids] == [[3], [0, 1]]
    assert second.scores[1] == pytest.approx([0.4, 0.3])


def test_the_nearest_come_as_they_were_retrieved(corpus):
    found = ordered(corpus, "top")
    for mine, theirs in zip(found, RETRIEVED, strict=True):
        assert [one.tolist() for one in mine] == [one.tolist() for one in theirs]


def test_of_a_pool_the_farthest_come_first_and_the_others_behind_it(corpus):
    found = ordered(corpus, "tail")
    assert [ids.tolist() for ids in found.ids] == [[SECOND, 3, 2, SECOND + 1], [5, 4]]
    assert [chars.tolist() for chars in found.chars] == [[10, 40, 30, 20], [60, 50]]


def test_a_pool_is_shuffled_by_the_seed_alone(corpus):
    drawn = {
        tuple(ordered(corpus, "random-retrieved", seed=seed).ids[0].tolist())
        for seed in range(40)
    }
    assert {frozenset(ids[:3]) for ids in drawn} == {frozenset([2, 3, SECOND])}
    assert {ids[3] for ids in drawn} == {SECOND + 1}
    assert len(drawn) == 6  # every order of three


@pytest.mark.parametrize(
    "negatives", ["top", "mixed", "tail", "random-retrieved", "random-corpus"]
)
def test_none_is_nearer_than_the_most_that_is_allowed(corpus, negatives):
    found = ordered(corpus, negatives, max_similarity=0.1)
    assert all((scores <= 0.1).all() for scores in found.scores)
    assert all(
        (scores <= 0.5).all()
        for scores in ordered(corpus, negatives, max_similarity=0.5).scores
    )


def test_random_chunks_are_of_other_documents_with_their_true_cosines(corpus):
    stored = np.concatenate([np.load(path) for path in corpus["vectors"]]).astype(
        np.float32
    )
    for seed in range(20):
        found = ordered(corpus, "random-corpus", seed=seed)
        for meta_chunk, (ids, scores, chars) in enumerate(zip(*found, strict=True)):
            assert len(set(ids.tolist())) == len(ids) == len(RETRIEVED.ids[meta_chunk])
            assert not {0, 1} & set(ids.tolist())
            rows = np.where(ids < SECOND, ids, ids - SECOND + 6)
            assert scores == pytest.approx(stored[rows] @ stored[meta_chunk], abs=1e-6)
            assert (
                chars.tolist()
                == np.where(
                    ids < SECOND, 10 * (ids + 1), 10 * (ids - SECOND + 1)
                ).tolist()
            )


def test_a_meta_chunk_repeats_itself_often_enough(corpus):
    found = ordered(corpus, "self-repeat")
    assert [set(ids.tolist()) for ids in found.ids] == [{0}, {1}]
    assert [int(chars.sum()) >= 60 for chars in found.chars] == [
        True,
        True,
    ]  # half of 120 each
    assert all((scores == 1).all() for scores in found.scores)


def naive_mixture(retrieved, drawn, rng, *, hard_share, used_chars):
    """The same lists, place by place, as (id, whether it is hard)."""
    lists, used = [], set()
    for hard, random in zip(retrieved, drawn, strict=True):
        coins = [rng.random() < hard_share for _ in hard]
        nearest = [one for one in hard if one[0] not in used][: sum(coins)]
        taken = used | {number for number, _ in nearest}
        others = [one for one in random if one[0] not in taken]
        merged = []
        for coin in coins:
            queue = nearest if coin else others
            if queue:
                merged.append((*queue.pop(0), coin))
        lists.append([(number, coin) for number, _, coin in merged])
        filled = 0
        for number, chars, _ in merged:
            used.add(number)
            filled += chars
            if filled >= used_chars:
                break
    return lists


def as_candidates(lists):
    ids = [np.array([number for number, _ in row], np.int64) for row in lists]
    chars = [np.array([chars for _, chars in row], np.int64) for row in lists]
    return Candidates(ids, [-own.astype(np.float32) for own in ids], chars)


def test_a_mixture_of_six_documents_is_the_naive_one():
    # Documents 1 to 6, of one chunk each but the first, whose two chunks are extended.
    sizes = {2: 30, 3: 40, 4: 10, 5: 20, 6: 50}
    retrieved = [[(2, 30), (3, 40), (4, 10), (5, 20)], [(2, 30), (3, 40), (6, 50)]]
    drawn = [
        [(number, sizes[number]) for number in row]
        for row in ([5, 6, 3, 4, 2], [4, 5, 6, 2, 3])
    ]
    seen = set()
    for seed in range(60):
        chosen = {"hard_share": 0.5, "used_chars": 40}
        merged = mixed(
            as_candidates(retrieved), as_candidates(drawn), rng_for(seed, "m"), **chosen
        )
        naive = naive_mixture(retrieved, drawn, rng_for(seed, "m"), **chosen)
        lists = [ids.tolist() for ids in merged.ids]
        assert lists == [[number for number, _ in row] for row in naive]
        for ids, scores, chars in zip(*merged, strict=True):
            assert scores.tolist() == [-number for number in ids.tolist()]
            assert chars.tolist() == [sizes[number] for number in ids.tolist()]
        seen.add(tuple(map(tuple, lists)))
    assert len(seen) > 20


@given(
    seed=st.integers(0, 10**6),
    meta_chunks=st.integers(1, 4),
    chunks=st.integers(8, 40),
    hard_share=st.floats(0.05, 0.95),
    used_chars=st.floats(1, 300),
)
def test_a_mixture_keeps_the_nearest_first_and_each_chunk_once(
    seed, meta_chunks, chunks, hard_share, used_chars
):
    rng = np.random.default_rng(seed)
    sizes = rng.integers(1, 60, chunks)
    length = int(rng.integers(1, chunks + 1))

    def lists(length):
        rows = [rng.permutation(chunks)[:length] for _ in range(meta_chunks)]
        return [[(int(number), int(sizes[number])) for number in row] for row in rows]

    retrieved, drawn = lists(length), lists(chunks)
    chosen = {"hard_share": hard_share, "used_chars": used_chars}
    merged = mixed(
        as_candidates(retrieved), as_candidates(drawn), rng_for(seed, "m"), **chosen
    )
    naive = naive_mixture(retrieved, drawn, rng_for(seed, "m"), **chosen)
    used = set()
    for ids, chars, plain, found in zip(
        merged.ids, merged.chars, naive, retrieved, strict=True
    ):
        numbers = ids.tolist()
        assert numbers == [number for number, _ in plain]
        assert len(set(numbers)) == len(numbers) <= length
        assert not used & set(numbers)
        hard = [number for number, is_hard in plain if is_hard]
        free = [number for number, _ in found if number not in used]
        assert hard == free[: len(hard)]
        reach = int(np.searchsorted(np.cumsum(chars), used_chars)) + 1
        used |= set(numbers[:reach])


def test_the_share_of_hard_candidates_is_the_recipes_for_every_meta_chunk():
    # Both meta-chunks find the same chunks, which the first one uses first.
    retrieved = [[(number, 10) for number in range(100)]] * 2
    drawn = [[(1000 + number, 10) for number in range(100)]] * 2
    for share in (0.25, 0.5, 0.75):
        hard = np.zeros(2)
        for seed in range(200):
            merged = mixed(
                as_candidates(retrieved),
                as_candidates(drawn),
                rng_for(seed, "m"),
                hard_share=share,
                used_chars=200,
            )
            hard += [(ids[:20] < 1000).mean() for ids in merged.ids]
        assert hard / 200 == pytest.approx([share, share], abs=0.03)
