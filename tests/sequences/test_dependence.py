"""The dependence of meta-chunks: by hand with a model that only copies, and against a naive computation with a real one."""

import math
import re
from itertools import chain, pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.copying_model import CopyingModel
from tests.support.scoring_models import scoring_model

from nextlong import schemas
from nextlong.recipe.keys import Scorer
from nextlong.retrieval.surprisal import Encoded, SurprisalModel
from nextlong.schemas import CONTEXT, META, NEGATIVE, SEPARATOR
from nextlong.sequences.dependence import (
    Dependence,
    Kind,
    SequenceText,
    dependence,
    mean_gain,
    score_meta_chunks,
    words_of_tokens,
)

# Six documents: of the first the chunks are meta-chunks, the others give the negatives.
RIVER = ["Anna rows up the Arno.", "Anna and Otto meet; the Arno rises.", "Otto rows."]
OTHERS = ["Otto rows up the Po.", "The Po rises.", "Cold rain.", "A dry year."]
UNRELATED = "Many stars are far away from here and cold and old."


def sequence(unrelated=UNRELATED):
    texts = [RIVER[0], "\n", OTHERS[0], OTHERS[1], RIVER[1], OTHERS[2], RIVER[2]]
    roles = [META, SEPARATOR, NEGATIVE, NEGATIVE, META, NEGATIVE, META, NEGATIVE]
    return SequenceText(texts=[*texts, OTHERS[3]], roles=roles, unrelated=unrelated)


def test_the_words_of_a_meta_chunk_are_told_apart_by_where_they_stood():
    ((first, second),) = score_meta_chunks(CopyingModel(), [sequence()])
    # Anna and Otto meet ; the Arno rises .
    kinds = [Kind(kind).name for kind in first.kinds.tolist()]
    assert kinds == [
        "OWN", "NEITHER", "NEGATIVES", "NEITHER", "NO_WORD", "BOTH", "OWN", "NEGATIVES",
        "NO_WORD",
    ]  # fmt: skip
    # Otto rows . — both stand in the earlier meta-chunks and in a negative.
    assert [Kind(kind).name for kind in second.kinds] == ["BOTH", "BOTH", "NO_WORD"]
    assert second.words[0] == first.words[2] != 0
    assert first.words[4] == 0


def test_only_the_words_that_nothing_else_tells_have_a_gain():
    model = CopyingModel()
    ((first, second),) = score_meta_chunks(model, [sequence()])
    assert first.loss.tolist() == [1, 5, 1, 5, 5, 1, 1, 1, 1]
    gains = (first.replaced_loss - first.loss).tolist()
    # Otto, the, rises and the full stop are known from the negatives as well.
    assert gains == [4, 0, 0, 0, 0, 0, 4, 0, 0]
    assert dependence(first) == Dependence(tokens=2, gain=4.0, gap=11)
    found = dependence(second)
    assert (found.tokens, found.gap) == (0, 3)
    assert math.isnan(found.gain)


def test_earlier_meta_chunks_are_replaced_by_as_many_tokens():
    model = CopyingModel()
    score_meta_chunks(model, [sequence()])
    as_is, for_second, for_third = model.rows
    names = {number: word for word, number in model.ids.items()}
    assert [names[number] for number in for_second[:6]] == [
        "many", "stars", "are", "far", "away", "from",
    ]  # fmt: skip
    assert for_second[6:] == as_is[6 : len(for_second)]
    assert len(for_third) == len(as_is)
    changed = [
        i
        for i, pair in enumerate(zip(as_is, for_third, strict=True))
        if len({*pair}) == 2
    ]
    second = len(for_second) - 9
    assert set(changed) <= {*range(6), *range(second, second + 9)}
    # Unrelated text that is too short is repeated.
    model.rows.clear()
    score_meta_chunks(model, [sequence(unrelated="one two")])
    assert [names.get(number, "new") for number in model.rows[1][:6]] == ["new"] * 6


def test_contexts_are_replaced_but_not_scored_and_excluded_words_do_not_count():
    text = SequenceText(
        texts=[RIVER[0], OTHERS[2], RIVER[1], OTHERS[0], RIVER[2]],
        roles=[CONTEXT, CONTEXT, META, NEGATIVE, META],
        unrelated=UNRELATED,
        excluded="the",
    )
    ((first, second),) = score_meta_chunks(CopyingModel(), [text])
    # Anna and Otto meet ; the Arno rises .
    assert [Kind(kind).name for kind in first.kinds.tolist()] == [
        "OWN", "NEITHER", "NEITHER", "NEITHER", "NO_WORD", "BOTH", "OWN", "NEITHER",
        "NO_WORD",
    ]  # fmt: skip
    assert dependence(first) == Dependence(tokens=2, gain=4.0, gap=0)
    assert second.gap == len(CopyingModel().encode([OTHERS[0]])[0].ids)


def test_the_last_meta_chunk_alone_is_scored_as_among_all():
    (every,) = score_meta_chunks(CopyingModel(), [sequence()])
    (last,) = score_meta_chunks(CopyingModel(), [sequence()], which="last")
    assert len(last) == 1
    for found, expected in zip(last[0], every[-1], strict=True):
        assert np.array_equal(found, expected)


def test_a_sequence_of_one_meta_chunk_has_nothing_to_score():
    texts = SequenceText(texts=["a b", "c"], roles=[META, NEGATIVE], unrelated="d")
    assert score_meta_chunks(CopyingModel(), [texts, sequence()], which="last")[0] == []


def test_the_gain_of_a_sequence_counts_each_token_once():
    chunks = [Dependence(3, 2.0, 9), Dependence(0, math.nan, 9), Dependence(1, 6.0, 9)]
    assert mean_gain(chunks) == 3.0
    assert math.isnan(mean_gain(chunks[1:2]))
    assert math.isnan(mean_gain([]))


@given(
    text=st.text("ab1 .,ä漢字", max_size=30),
    sizes=st.lists(st.integers(1, 5), min_size=30),
)
def test_a_token_has_the_first_word_that_it_shares_a_character_with(text, sizes):
    bounds = [0]
    for size in sizes:
        if bounds[-1] < len(text):
            bounds.append(min(len(text), bounds[-1] + size))
    offsets = np.array(list(pairwise(bounds)), np.int64).reshape(-1, 2)
    encoded = Encoded(np.zeros(len(offsets), np.int64), offsets)
    words = [match.span() for match in re.finditer(r"[漢字]|[ab1ä]+", text)]
    hashes = {}
    for token, (start, stop) in zip(
        words_of_tokens(text, encoded), offsets.tolist(), strict=True
    ):
        shared = [text[a:b] for a, b in words if a < stop and b > start]
        assert (token != 0) == bool(shared)
        if shared:
            assert hashes.setdefault(shared[0], token) == token
    assert len(set(hashes.values())) == len(hashes)


@pytest.mark.heavy
def test_a_causal_model_gives_the_losses_of_a_naive_computation(tmp_path):
    model = SurprisalModel(Scorer(model=str(scoring_model(tmp_path / "m"))))
    sequences = [sequence(), sequence(unrelated="so short")]
    for text, chunks in zip(
        sequences, score_meta_chunks(model, sequences), strict=True
    ):
        for found, expected in zip(chunks, naive(model, text), strict=True):
            gap, kinds, loss, replaced = expected
            assert (found.gap, found.kinds.tolist()) == (gap, kinds)
            np.testing.assert_allclose(found.loss, loss, rtol=1e-3, atol=1e-3)
            np.testing.assert_allclose(
                found.replaced_loss, replaced, rtol=1e-3, atol=1e-3
            )


def naive(model, text):
    """Yield gap, kinds and both losses of each later meta-chunk, piece by piece."""
    ids = [model.encode([piece])[0].ids.tolist() for piece in text.texts]
    pool = model.encode([text.unrelated])[0].ids.tolist()
    metas = [i for i, role in enumerate(text.roles) if role == META]
    for earlier, meta in pairwise(metas):
        row = [*chain.from_iterable(ids[: meta + 1])]
        replaced, used = [], 0
        for i in range(meta):
            for token in ids[i]:
                replaced.append(pool[used % len(pool)] if i in metas else token)
                used += i in metas
        rows = [row, replaced + ids[meta]]
        first = len(row) - len(ids[meta])
        losses = [model.score([np.array(one)])[0].loss[first:] for one in rows]
        gap = sum(len(ids[i]) for i in range(earlier + 1, meta))
        yield gap, list(naive_kinds(model, text, meta)), *losses


def naive_kinds(model, text, meta):
    def words(role):
        before = [
            piece
            for piece, of_piece in zip(text.texts[:meta], text.roles, strict=False)
            if of_piece == role
        ]
        return set(re.findall(r"[^\W_]+", " ".join(before).lower()))

    own, negatives = words(schemas.META), words(NEGATIVE)
    found = list(re.finditer(r"[^\W_]+", text.texts[meta]))
    for start, stop in model.encode([text.texts[meta]])[0].offsets.tolist():
        shared = [
            m.group().lower() for m in found if m.start() < stop and m.end() > start
        ]
        if not shared:
            yield Kind.NO_WORD
        else:
            of_word = (shared[0] in own, shared[0] in negatives)
            yield {
                (True, False): Kind.OWN,
                (False, True): Kind.NEGATIVES,
                (True, True): Kind.BOTH,
                (False, False): Kind.NEITHER,
            }[of_word]
