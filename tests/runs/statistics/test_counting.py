"""What is counted in a block of spans, by hand."""

import numpy as np
import pytest

from nextlong.runs.statistics.counting import Counting
from nextlong.runs.statistics.spans import Block
from nextlong.schemas import BOS, DOCUMENT, META, NEGATIVE, NO_CHUNK, SEPARATOR

NAN = float("nan")


def block(*rows):
    """Rows: sequence, chunk, document, role, group, start, end, score."""
    sequence, chunk, doc, role, group, start, end, score = map(
        np.array, zip(*rows, strict=True)
    )
    return Block(
        sequence,
        chunk,
        doc,
        role.astype(np.int8),
        group,
        start,
        end,
        score.astype(np.float64),
    )


# Document 1 (chunks 10, 11, 12) is the meta-document of both sequences; in the second,
# 11 stands behind its negative.
EXTENDED = block(
    (0, NO_CHUNK, -1, BOS, -1, 0, 1, 0.0),
    (0, 10, 1, META, 0, 1, 4, 1.0),
    (0, 20, 2, NEGATIVE, 0, 4, 9, 0.9),
    (0, NO_CHUNK, -1, SEPARATOR, 0, 9, 10, 0.0),
    (0, 30, 3, NEGATIVE, 0, 10, 12, 0.8),
    (0, 11, 1, META, 1, 12, 15, 1.0),
    (0, 31, 3, NEGATIVE, 1, 15, 20, 0.7),
    (0, 12, 1, META, 2, 20, 21, 1.0),
    (1, 10, 1, META, 0, 0, 4, 1.0),
    (1, 20, 2, NEGATIVE, 1, 4, 10, 0.6),
    (1, 11, 1, META, 1, 10, 20, 1.0),
)

# Documents 4, 5 and 6 of chunks 40-42, 50 and 60-61; then 5 alone, and 6 whose cosine
# is unknown.
CONCATENATED = block(
    (0, 40, 4, DOCUMENT, 0, 0, 5, 1.0),
    (0, NO_CHUNK, -1, SEPARATOR, 0, 5, 6, 0.0),
    (0, 41, 4, DOCUMENT, 0, 6, 9, 1.0),
    (0, 42, 4, DOCUMENT, 0, 9, 11, 1.0),
    (0, 50, 5, DOCUMENT, 1, 11, 13, 0.5),
    (0, 60, 6, DOCUMENT, 2, 13, 15, 0.25),
    (0, 61, 6, DOCUMENT, 2, 15, 20, 0.25),
    (1, 50, 5, DOCUMENT, 0, 0, 7, NAN),
    (1, 60, 6, DOCUMENT, 1, 7, 20, NAN),
)


def counted(rows):
    counting = Counting()
    counting.add(rows)
    return counting


def tallied(tally):
    return [
        value
        for value, count in zip(*tally.counted(), strict=True)
        for _ in range(count)
    ]


def ranked(rows):
    """Return the mean cosine and the number of those of each rank."""
    counting = counted(rows)
    sums, counts = counting.rank_sums[1:], counting.rank_counts[1:].tolist()
    return [
        (round(mean, 9), count)
        for mean, count in zip(sums / counts, counts, strict=True)
    ]


def test_a_negative_has_the_rank_of_its_place_beside_its_meta_chunk():
    assert ranked(EXTENDED) == [(pytest.approx((0.9 + 0.7 + 0.6) / 3), 3), (0.8, 1)]
    assert tallied(counted(EXTENDED).cosines) == [6000, 7000, 8000, 9000]


def test_a_document_has_the_rank_of_its_place_behind_the_first_once_however_many_chunks():
    assert ranked(CONCATENATED) == [(0.5, 1), (0.25, 1)]


def test_later_blocks_may_have_more_or_fewer_ranks():
    counting = counted(CONCATENATED)
    counting.add(block((0, 20, 2, NEGATIVE, 0, 0, 20, 0.5)))
    counting.add(
        block(*((0, 20 + n, 20 + n, NEGATIVE, 0, n, n + 1, 0.25) for n in range(3)))
    )
    assert counting.rank_counts.tolist() == [0, 3, 2, 1]
    assert counting.rank_sums.tolist() == [0, 1.25, 0.5, 0.25]


def test_distances_are_the_tokens_between_meta_chunks():
    assert tallied(counted(EXTENDED).gaps) == sorted([12 - 4, 20 - 15, 10 - 4])


def test_distances_are_the_tokens_between_parts_of_a_document():
    # 4 stands in three parts, the second of two chunks; 5 in two; in the next sequence
    # 4 begins anew.
    parted = block(
        (0, 40, 4, DOCUMENT, 0, 0, 5, NAN),
        (0, 50, 5, DOCUMENT, 1, 5, 9, NAN),
        (0, 41, 4, DOCUMENT, 0, 9, 11, NAN),
        (0, 42, 4, DOCUMENT, 0, 11, 12, NAN),
        (0, NO_CHUNK, -1, SEPARATOR, 0, 12, 13, 0.0),
        (0, 51, 5, DOCUMENT, 1, 13, 14, NAN),
        (0, 43, 4, DOCUMENT, 0, 14, 20, NAN),
        (1, 40, 4, DOCUMENT, 0, 0, 20, NAN),
    )
    counting = counted(parted)
    assert tallied(counting.gaps) == sorted([9 - 5, 14 - 12, 13 - 9])
    assert (counting.in_parts, counting.in_sequences) == (2, 3)
    assert tallied(counting.taken) == [4, 4, 5]


def test_whole_documents_have_no_distances():
    assert tallied(counted(CONCATENATED).gaps) == []
    assert (counted(CONCATENATED).in_parts, counted(CONCATENATED).in_sequences) == (
        0,
        5,
    )


def test_own_document_negatives_are_found():
    assert counted(EXTENDED).own_document == 0
    leaky = block(
        (0, 10, 1, META, 0, 0, 4, 1.0),
        (0, 12, 1, NEGATIVE, 0, 4, 9, 0.9),
        (0, 30, 3, NEGATIVE, 0, 9, 10, 0.9),
        (1, 30, 3, META, 0, 0, 5, 1.0),
        (
            1,
            10,
            1,
            NEGATIVE,
            0,
            5,
            8,
            0.9,
        ),  # the meta-document of another sequence is a document like any other
    )
    assert counted(leaky).own_document == 1


def test_repeated_chunks_are_found_within_a_sequence_only():
    assert counted(EXTENDED).repeated == 0
    repeated = block(
        (0, 10, 1, META, 0, 0, 4, 1.0),
        (0, 20, 2, NEGATIVE, 0, 4, 9, 0.9),
        (0, 20, 2, NEGATIVE, 0, 9, 12, 0.9),
        (0, 10, 1, NEGATIVE, 0, 12, 20, 0.9),
        (1, 20, 2, META, 0, 0, 20, 1.0),
    )
    assert counted(repeated).repeated == 2


def test_documents_of_a_sequence_are_counted_once():
    assert tallied(counted(EXTENDED).documents) == [2, 3]
    assert tallied(counted(CONCATENATED).documents) == [2, 3]


def test_a_sequence_of_nothing_but_negatives_counts():
    alone = block((0, 20, 2, NEGATIVE, 0, 0, 20, 0.5))
    assert ranked(alone) == [(0.5, 1)]
    assert tallied(counted(alone).gaps) == []
    assert counted(alone).own_document == 0
