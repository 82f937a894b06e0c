"""Blocks of rows: joined, sliced and packed they hold the same sequences, tokens and spans."""

from dataclasses import fields
from itertools import pairwise

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from nextlong.artifacts.resolve import Resolved, joined, joined_names, packed, sliced, span_texts
from nextlong.schemas import META, NO_CHUNK, SEPARATOR
from random_rows import random_blocks

SEEDS = st.integers(0, 2**32)


def values(block):
    """Return all columns in a form that compares; no number is NaN to itself."""
    return {field.name: repr(list(getattr(block, field.name))) for field in fields(Resolved)}


@given(seed=SEEDS)
def test_slices_of_what_was_joined_are_what_they_were(seed):
    blocks = random_blocks(seed, rows=7, longest=30)
    whole = joined(blocks)
    assert len(whole) == 7
    ends = np.cumsum([0, *map(len, blocks)])
    for block, first, last in zip(blocks, ends[:-1], ends[1:], strict=True):
        assert values(sliced(whole, int(first), int(last))) == values(block)


@given(seed=SEEDS, data=st.data())
def test_packing_joins_rows_and_loses_no_token_document_or_span(seed, data):
    block = joined(random_blocks(seed, rows=6, longest=30))
    inner = data.draw(st.lists(st.integers(1, 5), unique=True).map(sorted))
    bounds = np.array([0, *inner, 6])
    rows = packed(block, bounds)
    assert len(rows) == len(bounds) - 1
    for name in ("input_ids", "document_lengths", "chunk_ids", "roles"):
        assert list(getattr(rows, name)) == list(getattr(block, name))
    assert rows.sequence_ids == [" ".join(block.sequence_ids[a:b]) for a, b in pairwise(bounds)]
    starts = np.repeat(rows.token_offsets[:-1], np.diff(rows.span_offsets)) + rows.token_starts
    before = np.repeat(block.token_offsets[:-1], np.diff(block.span_offsets)) + block.token_starts
    assert starts.tolist() == before.tolist()


def test_a_name_that_several_have_stands_once():
    assert joined_names(["knn", "quest", "knn"]) == "knn+quest"


def test_a_cut_chunk_has_the_beginning_of_its_text_and_a_separator_its_own():
    block = joined(random_blocks(0, rows=1, longest=9))
    spans = {"chunk_ids": [8, NO_CHUNK], "roles": [META, SEPARATOR], "char_starts": [5, 0], "char_ends": [8, 0]}
    block = Resolved(**{**vars(block), **{name: np.array(column) for name, column in spans.items()}})
    texts = span_texts(
        block, text_of=lambda ids: np.array([f"chunk {one}" for one in ids], object), special_text={SEPARATOR: "\n"}
    )
    assert texts == ["chu", "\n"]
