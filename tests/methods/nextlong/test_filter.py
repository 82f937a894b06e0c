"""Screening: what falls out, what takes its place, what is left to composing, and how far it looks."""

import numpy as np
import pytest

from nextlong.methods.nextlong.candidates import Candidates
from nextlong.methods.nextlong.filter import filter_near_copies
from nextlong.similarity.shingles import ShingleStore, document_of, shingles

WEIGHTS = np.full(1 << 16, 1024, np.uint16)


def words(number, *, count=40, changed=0):
    """A text of its own; `changed` of its words, far apart, are others."""
    own = [f"w{number}x{place}" for place in range(count)]
    for place in range(changed):
        own[place * (count // changed)] += "other"
    return " ".join(own)


@pytest.fixture
def stored(tmp_path):
    """A function of texts that returns them, and the store of their shingles, one chunk a text."""

    def store(texts):
        found = shingles(texts)
        np.save(tmp_path / "h.npy", found.hashes)
        np.save(tmp_path / "o.npy", found.offsets)
        return texts, ShingleStore(hashes=[tmp_path / "h.npy"], offsets=[tmp_path / "o.npy"])

    return store


def offers(*lists):
    return Candidates(
        [np.array(own, np.int64) for own in lists],
        [np.linspace(0.9, 0.1, len(own), dtype=np.float32) for own in lists],
        [np.full(len(own), 100) for own in lists],
    )


def take(length):
    """A draft of as much of each list as holds `length` candidates that will serve."""

    def draft(offered):
        served = [np.cumsum(chars > 0) for chars in offered.chars]
        return [min(len(own), int(np.searchsorted(own, length)) + 1) if len(own) else 0 for own in served]

    return draft


def filtered(store, offered, *, chunks=1, length=2):
    """Screen for a meta-document of the first chunks."""
    texts, shingles = store
    document = document_of(texts[:chunks])
    found = filter_near_copies(
        offered, take(length), document=document, shingles=shingles, weights=WEIGHTS, threshold=0.8
    )
    return [ids[:length].tolist() for ids, length in zip(found.candidates.ids, found.prefixes, strict=True)], found


def test_a_copy_of_the_meta_document_gives_way_to_the_next(stored):
    store = stored([words(0), words(1), words(0, changed=2), words(2), words(3)])
    drafted, found = filtered(store, offers([2, 1, 3, 4]))
    assert drafted == [[1, 3]]
    assert found.near_copies == 1
    assert found.pairs.tolist() == []
    assert found.candidates.scores[0] == pytest.approx(np.linspace(0.9, 0.1, 4)[1:])


def test_a_copy_of_another_meta_chunk_falls_out_too(stored):
    drafted, _ = filtered(stored([words(0), words(1), words(1, changed=1), words(2)]), offers([2, 3], [3]), chunks=2)
    assert drafted == [[3], [3]]


def test_copies_among_candidates_stay_paired_and_the_later_one_counts_nothing(stored):
    texts = [words(0), words(1), words(2), words(2, changed=1), words(3)]
    drafted, found = filtered(stored(texts), offers([1, 3], [2, 4]))
    assert drafted == [[1, 3], [2, 4]]
    assert found.pairs.tolist() == [[3, 2]]
    drafted, found = filtered(stored(texts), offers([2, 3, 1, 4]))
    assert drafted == [[2, 3, 1]]
    assert found.pairs.tolist() == [[2, 3]]
    assert found.near_copies == 1


def test_a_copy_of_what_counts_nothing_counts(stored):
    # The second repeats the first, the third the second but not the first, which is what will be placed.
    own = words(1, count=60).split()
    second = [*own[:5], *words(8, count=9).split(), *own[14:]]
    third = [*second[:40], *words(9, count=9).split(), *second[49:]]
    texts = [words(0), " ".join(own), " ".join(second), " ".join(third), words(2)]
    drafted, found = filtered(stored(texts), offers([1, 2, 3, 4]))
    assert drafted == [[1, 2, 3]]
    assert found.pairs.tolist() == [[1, 2], [2, 3]]


def test_pairs_outside_the_draft_are_left_out(stored):
    drafted, found = filtered(stored([words(0), words(1), words(2), words(3), words(3)]), offers([1, 2, 3, 4]))
    assert drafted == [[1, 2]]
    assert found.pairs.tolist() == []


def test_half_a_copy_stays(stored):
    drafted, found = filtered(
        stored([words(0), words(0, count=20) + " " + words(1, count=20), words(2)]), offers([1, 2])
    )
    assert drafted == [[1, 2]]
    assert found.near_copies == 0


def test_it_looks_on_where_everything_so_far_falls_out(stored):
    copies = [words(0, changed=1 + number % 3) for number in range(50)]
    drafted, found = filtered(stored([words(0), *copies, words(1), words(2), words(0)]), offers(range(1, 54)))
    assert drafted == [[51, 52]]
    assert found.near_copies == 50


def test_a_list_of_nothing_but_copies_drafts_nothing(stored):
    drafted, found = filtered(stored([words(0), *(words(0) for _ in range(30))]), offers(range(1, 31)))
    assert drafted == [[]]
    assert found.near_copies == 30


def test_what_falls_out_for_a_passage_alone_is_counted(stored):
    passage = words(7, count=100)
    texts = [words(0, count=200) + " " + passage, passage + " " + words(1, count=200), words(2)]
    texts += [words(number, count=300) + " " + words(8, count=120) for number in (3, 4)]
    drafted, found = filtered(stored(texts), offers([1, 2, 3, 4]), length=3)
    assert drafted == [[2, 3, 4]]
    assert found.pairs.tolist() == [[3, 4]]
    assert (found.near_copies, found.by_passage) == (2, 2)
