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
        made, filled, used = [], 0, set()
        while filled < enough:
            ends = []
            for name, chunks in waiting:
                before = naive_chunks(made, name, chunks)
                if name in used or not before:
                    continue
                room = enough - filled
                size = CHUNKS * tokens[name]
                while len(before) > 1 and (
                    sum(tokens[one[0]] for one in before) >= room
                    or sum(tokens[one[0]] for one in before[:-1]) + size >= room
                ):
                    before.pop()
                if sum(tokens[one[0]] for one in before) < room:
                    made += [*before, (name, 0, CHUNKS, DOCUMENT)]
                    used.add(name)
                    break
                ends.append(before)
            else:
                if not made or not ends:
                    return drafts
                made += ends[0]
            filled = sum(tokens[part[0]] * part[2] for part in made)
        drafts.append(made)
        waiting = [unit for unit in waiting if unit[0] not in used]


def naive_chunks(made, name, chunks):
    """Return the chunks of a document that may follow these parts."""
    whole = [part[0] for part in made if part[3] == DOCUMENT]
    there = {part[:2] for part in made if part[3] != DOCUMENT}
    left = [part for part in chunks if part[:2] not in there and part[0] not in whole]
    contexts = [part for part in left if part[3] == CONTEXT]
    if not contexts or any(part[0] == name for part in made):
        return []
    return [contexts[0], *(one for one in left if one != contexts[0])]


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


def random_corpus(count=400):
    rng = np.random.default_rng(0)
    tokens = rng.integers(100, 600, count).tolist()
    found = {}
    for name in range(count):
        owners = [int(one) for one in rng.choice(count, 3, replace=False)]
        chunks = [(owner, int(rng.integers(CHUNKS)), 0.5) for owner in owners]
        found[name] = [one for one in chunks if one[0] != name]
    return tokens, found


@pytest.mark.parametrize("enough", [2048, 4096, 16384])
def test_every_document_begins_in_its_sequence(enough):
    tokens, found = random_corpus()
    drafted = parts_of(draft(tokens, found, enough=enough))
    assert drafted
    used = []
    for parts in drafted:
        sizes = [count * tokens[document] for document, _, count, _ in parts]
        starts = np.cumsum(sizes) - sizes
        assert sum(sizes) >= enough
        assert starts[-1] < enough
        used += [part[0] for part in parts if part[3] == DOCUMENT]
    # Documents are lost only by the last sequence, which was not filled.
    assert len(set(used)) == len(used)
    assert sum(CHUNKS * tokens[one] for one in set(range(400)) - set(used)) < 2 * enough


def documents_of(drafted):
    return [[part[0] for part in one if part[3] == DOCUMENT] for one in drafted]


def test_a_document_that_does_not_fit_waits_while_another_one_fits():
    # Behind document 0, 20 tokens are left: too few for a context of 30.
    found = {0: [(3, 0, 0.5)], 1: [(4, 0, 0.5)], 2: [(3, 1, 0.5)]}
    drafted = parts_of(draft([10, 10, 10, 10, 30], found, enough=60))
    assert documents_of(drafted) == [[0, 2], [1]]


def test_a_context_that_ends_a_sequence_serves_its_document_in_the_next_one():
    found = {0: [(3, 0, 0.5)], 1: [(4, 0, 0.5)], 2: [(5, 0, 0.5)]}
    drafted = parts_of(draft([10, 10, 10, 30, 30, 30], found, enough=70))
    assert documents_of(drafted) == [[0], [1]]
    first, second = drafted
    assert first[-1] == second[0] == (4, 0, 1, CONTEXT)


def test_no_more_than_100_documents_are_passed_over():
    # Of the others, only one has a context that fits behind the first document.
    count = 103
    hashes = np.arange(1, count + 1, dtype=np.uint64)
    order = np.argsort(keyed_hash(hashes, seed=SEED, stage="entropy")).tolist()
    for place, ends_with_document in ((100, True), (101, False)):
        tokens = [10] * count + [30, 10]
        found = {name: [(count, 0, 0.5)] for name in order}
        found[order[0]] = [(count + 1, 0, 0.5)]
        found[order[place]] = [(count + 1, 1, 0.5)]
        first = parts_of(draft(tokens, found, enough=60, sequences=1))[0]
        assert (first[-1][3] == DOCUMENT) is ends_with_document


def test_a_context_that_pushes_its_document_beyond_the_end_is_left_out():
    found = {0: [(1, 0, 0.5), (2, 0, 0.5)], 3: [(4, 0, 0.5)]}
    drafted = parts_of(draft([5, 10, 90, 40, 5], found, enough=100))
    assert drafted
    for parts in drafted:
        assert (2, 0, 1, CONTEXT) not in parts or len(parts) == 2


def test_contexts_as_long_as_a_sequence_give_none():
    assert not parts_of(draft([10, 50], {0: [(1, 0, 0.5)]}, enough=50))


def test_a_document_whose_chunk_stands_in_a_sequence_goes_to_the_next_one():
    found = {0: [(1, 0, 0.5)], 1: [(2, 0, 0.5)]}
    drafted = parts_of(draft([10] * 3, found, enough=40))
    assert [parts[-1][0] for parts in drafted] in ([0, 1], [1, 0])
    assert not parts_of(draft([10] * 3, found, enough=41))


@pytest.mark.parametrize("are_all", [True, False])
def test_another_attempt_is_made_while_documents_are_left(are_all):
    drafted = draft([10] * 2, {0: [(1, 0, 0.5)]}, enough=40, are_all=are_all)
    assert drafted.limited is not are_all
