"""EntropyLong's drafts, by hand and against a naive version, on documents of known lengths."""

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from nextlong.methods import entropy
from nextlong.methods.base import Contexts, CorpusArrays, DraftRequest
from nextlong.rng import keyed_hash, rng_for
from nextlong.schemas import CONTEXT, DOCUMENT, NEGATIVE

SEED = 3
CHUNKS = 3  # of every document


def corpus_of(tokens, found, *, are_all=True):
    """Documents of three chunks of these tokens each; `found`: (owner, chunk, reduction) of each scored document."""
    count = len(tokens)
    rows = [row for own in found.values() for row in own]
    owners, numbers, reductions = zip(*rows, strict=True) if rows else ((), (), ())
    return CorpusArrays(
        content_hashes=np.arange(1, count + 1, dtype=np.uint64),
        tokens=CHUNKS * np.array(tokens),
        chunk_offsets=CHUNKS * np.arange(count + 1),
        chunk_tokens=np.repeat(tokens, CHUNKS),
        contexts=Contexts(
            documents=np.array(list(found), np.int64),
            offsets=np.cumsum([0, *map(len, found.values())]),
            owners=np.array(owners, np.int64),
            numbers=np.array(numbers, np.int64),
            cosines=np.linspace(0.1, 0.9, len(rows), dtype=np.float32),
            reductions=np.array(reductions, np.float32),
            are_all=are_all,
        ),
    )


def draft(tokens, found, *, enough, sequences=None, are_all=True, **options):
    return entropy.METHOD.draft(
        corpus_of(tokens, found, are_all=are_all),
        entropy.Entropy(**options),
        DraftRequest(target_tokens=enough, sequences=sequences, seed=SEED),
    )


def parts_of(drafted):
    """Return the (document, first chunk, chunks, role) of the parts of each draft."""
    return [
        list(
            zip(
                one.documents.tolist(),
                one.firsts.tolist(),
                one.chunks.tolist(),
                one.roles.tolist(),
                strict=True,
            )
        )
        for one in drafted.drafts
    ]


def naive_units(found, hashes, *, distractors):
    """Return each document and the chunks that may stand before it, in order."""
    names = list(found)
    order = np.argsort(keyed_hash(hashes[names], seed=SEED, stage="entropy"))
    units = []
    for name in [names[place] for place in order]:
        rows = found[name]
        kept = [i for i, row in enumerate(rows) if row[2] > 0.4]
        worse = sorted((row[2], i) for i, row in enumerate(rows) if row[2] < 0)
        chosen = kept + [i for _, i in worse[: distractors * len(kept)]]
        rng = rng_for(SEED, "entropy.order", int(hashes[name]))
        order_of_chunks = rng.permutation(np.array(chosen, np.int64)).tolist()
        roles = {i: CONTEXT if i in kept else NEGATIVE for i in chosen}
        units.append((name, [(*rows[i][:2], 1, roles[i]) for i in order_of_chunks]))
    return [unit for unit in units if unit[1]]


def naive(tokens, found, *, enough, distractors):
    """Return the parts of each draft, as the docstring of the module tells them."""
    hashes = np.arange(1, len(tokens) + 1, dtype=np.uint64)
    waiting = naive_units(found, hashes, distractors=distractors)
    drafts = []
    while True:
        made, filled, unused = [], 0, []
        for name, chunks in waiting:
            whole = [part[0] for part in made if part[3] == DOCUMENT]
            chunks_left = [
                part for part in chunks if part not in made and part[0] not in whole
            ]
            contexts = [part for part in chunks_left if part[3] == CONTEXT]
            is_there = any(part[0] == name for part in made)
            if filled >= enough or is_there or not contexts:
                unused.append((name, chunks))
                continue
            before = [contexts[0], *(one for one in chunks_left if one != contexts[0])]
            room = enough - filled - CHUNKS * tokens[name]
            while (
                len(before) > 1 and sum(tokens[one[0]] for one in before[:-1]) >= room
            ):
                before.pop()
            made += [*before, (name, 0, CHUNKS, DOCUMENT)]
            filled = sum(tokens[part[0]] * part[2] for part in made)
        if filled < enough:
            return drafts
        drafts.append(made)
        waiting = unused


@given(st.data())
def test_drafts_are_those_of_the_naive_version(data):
    tokens = data.draw(st.lists(st.integers(1, 9), min_size=6, max_size=6))
    reduction = st.sampled_from([-0.5, -0.25, 0.25, 0.5, 0.75])
    found = {}
    for name in data.draw(st.permutations(range(6)))[: data.draw(st.integers(0, 6))]:
        chunk = st.tuples(
            st.sampled_from([i for i in range(6) if i != name]),
            st.integers(0, CHUNKS - 1),
            reduction,
        )
        found[name] = data.draw(
            st.lists(chunk, max_size=6, unique_by=lambda one: one[:2])
        )
    # Equal rises have no order.
    for rows in found.values():
        rises = [row[2] for row in rows if row[2] < 0]
        assume(len(set(rises)) == len(rises))
    enough = data.draw(st.integers(5, 60))
    distractors = data.draw(st.integers(0, 2))
    drafted = draft(tokens, found, enough=enough, distractors=distractors)
    assert parts_of(drafted) == naive(
        tokens, found, enough=enough, distractors=distractors
    )


def test_a_document_stands_behind_all_of_its_contexts():
    drafted = draft([10] * 4, {0: [(1, 2, 0.5), (2, 0, 0.9), (3, 1, 0.3)]}, enough=50)
    (parts,) = parts_of(drafted)
    assert sorted(parts[:2]) == [(1, 2, 1, CONTEXT), (2, 0, 1, CONTEXT)]
    assert parts[2:] == [(0, 0, CHUNKS, DOCUMENT)]


def test_documents_without_contexts_are_counted():
    found = {0: [(1, 0, 0.5)], 1: [], 2: [(1, 0, 0.39)], 3: [(1, 0, -1.0)]}
    assert draft([10] * 4, found, enough=40).without_contexts == 3


def test_distractors_are_the_chunks_that_raise_the_entropy_most():
    found = {0: [(1, 0, 0.5), (2, 0, -0.1), (3, 0, -0.9), (4, 0, 0.2)]}
    (parts,) = parts_of(draft([10] * 5, found, enough=50, distractors=1))
    assert parts == [
        (1, 0, 1, CONTEXT), (3, 0, 1, NEGATIVE), (0, 0, CHUNKS, DOCUMENT)
    ]  # fmt: skip


def test_the_last_document_has_only_the_contexts_that_reach_the_end():
    found = {0: [(1, 0, 0.5), (2, 0, 0.5), (3, 0, 0.5), (4, 0, 0.5)]}
    for enough, contexts in ((31, 1), (41, 2), (70, 4)):
        (parts,) = parts_of(draft([10] * 5, found, enough=enough))
        assert len(parts) == contexts + 1
    assert not parts_of(draft([10] * 5, found, enough=71))


def test_a_document_whose_chunk_stands_in_a_sequence_goes_to_the_next_one():
    found = {0: [(1, 0, 0.5)], 1: [(2, 0, 0.5)]}
    drafted = parts_of(draft([10] * 3, found, enough=40))
    assert [parts[-1][0] for parts in drafted] in ([0, 1], [1, 0])
    assert not parts_of(draft([10] * 3, found, enough=41))


@pytest.mark.parametrize("are_all", [True, False])
def test_another_attempt_is_made_while_documents_are_left(are_all):
    drafted = draft([10] * 2, {0: [(1, 0, 0.5)]}, enough=40, are_all=are_all)
    assert drafted.limited is not are_all
