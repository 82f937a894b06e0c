"""NExtLong's drafts, in hand-written integers."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nextlong.methods.nextlong import rules


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
def test_k_is_what_is_drafted_beyond_the_document_per_meta_chunk(document_chars, meta_chunks, expected):
    k = rules.negatives_per_meta_chunk(
        target_tokens=100,
        chars_per_token=4.0,
        draft_factor=1.5,  # Q = 600 characters
        document_chars=document_chars,
        meta_chunks=meta_chunks,
        max_chars=50,
    )
    assert k == expected


def test_k_of_the_papers_setting():
    # 131,072 tokens of 4 characters, w = 1.5, s = 2,048; a document of 5 chunks and 9,000 characters
    k = rules.negatives_per_meta_chunk(
        target_tokens=131_072,
        chars_per_token=4.0,
        draft_factor=1.5,
        document_chars=9_000,
        meta_chunks=5,
        max_chars=2048,
    )
    assert k == 76  # (786,432 - 9,000) / 10,240 = 75.92


def draft(ids, chars=None, *, fit, needed=0.0, drafted=0.0, negatives=0):
    ids = [np.array(row, np.int64) for row in ids]
    chars = [np.full(len(row), 10) if chars is None else np.array([chars[i] for i in row.tolist()]) for row in ids]
    return rules.draft(ids, chars, fit=fit, needed_chars=needed, drafted_chars=drafted, negatives=negatives)


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
def test_paper_prefixes_hold_k_that_no_earlier_meta_chunk_has(candidates, negatives, expected):
    assert draft(candidates, fit="paper", negatives=negatives) == expected


@pytest.mark.parametrize(
    ("candidates", "needed", "drafted", "expected"),
    [
        # Each of two needs 20 characters and drafts 30; all candidates have 10.
        ([[1, 2, 3, 4], [5, 6, 7, 8]], 40, 60, [3, 3]),
        # The first will presumably use 1 and 2, so the second looks past them; 3 may be free.
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
def test_exact_prefixes_hold_the_drafted_characters(candidates, needed, drafted, expected):
    assert draft(candidates, fit="exact", needed=needed, drafted=drafted) == expected


def test_exact_prefixes_count_characters_not_chunks():
    chars = {1: 100, 2: 3, 3: 3, 4: 100}
    assert draft([[2, 3, 1, 4]], chars, fit="exact", needed=50, drafted=75) == [3]
    assert draft([[1, 2, 3, 4]], chars, fit="exact", needed=50, drafted=75) == [1]


@given(
    candidates=st.lists(st.lists(st.integers(0, 30), unique=True, max_size=20), min_size=1, max_size=6),
    negatives=st.integers(1, 8),
    needed=st.integers(1, 400),
    more=st.integers(0, 300),
    fit=st.sampled_from(["exact", "paper"]),
)
def test_prefixes_are_as_short_as_they_may_be(candidates, negatives, needed, more, fit):
    lengths = draft(candidates, fit=fit, needed=needed, drafted=needed + more, negatives=negatives)
    taken = set()
    for ids, length in zip(candidates, lengths, strict=True):
        free = [number for number in ids[:length] if number not in taken]
        enough = negatives if fit == "paper" else -(-(needed + more) // len(candidates)) / 10
        assert length == len(ids) or len(free) >= enough
        assert length == 0 or len([number for number in ids[: length - 1] if number not in taken]) < enough
        used = negatives if fit == "paper" else -(-needed // len(candidates)) / 10
        for number in ids:
            if len([one for one in free if one in taken]) >= used:
                break
            taken.add(number)
