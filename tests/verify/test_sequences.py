"""Sequences of whole documents, by hand: two documents of chunks 0–2 and 3–4, lengths 4, 3, 2 and 5, 6."""

import itertools
from types import SimpleNamespace

import numpy as np
import pytest
from tests.support.damage import change_recipe, outcomes

import nextlong
from nextlong.recipe.keys import NEGATIVES
from nextlong.schemas import (
    BOS,
    CONTEXT,
    DOCUMENT,
    EOS,
    META,
    NEGATIVE,
    SEPARATOR,
    Layout,
)
from nextlong.sequences.tokenizer import train_bpe
from nextlong.verify.reference import Reference
from nextlong.verify.run_files import ResolvedSequence
from nextlong.verify.sequences import (
    Tokenized,
    _cut_problems,
    _order_problems,
    _repeat_problems,
    _separator_problems,
    _span_problems,
)

TOKENS = {0: 4, 1: 3, 2: 2, 3: 5, 4: 6, -1: -1}
DOCS = {0: 0, 1: 0, 2: 0, 3: 1, 4: 1, -1: -1}
FIRST = {0: 0, 1: 3, -1: -1}
STOP = {0: 3, 1: 5, -1: -1}


def run_of(layout=Layout.CONCATENATED, target_tokens=21, special=None):
    settings = {("compose", "target_tokens"): target_tokens}
    return SimpleNamespace(
        method="standard",
        layout=layout,
        negatives=NEGATIVES["top"],
        extra_tokens=0,
        task_share=0.0,
        is_exact=layout == Layout.EXTENDED,
        setting=lambda section, key, default=None: settings.get(
            (section, key), default
        ),
        special_ids=special or {SEPARATOR: [9], BOS: [], EOS: []},
    )


def sequence(*spans, layout=Layout.CONCATENATED):
    """Spans are (chunk, role, group, length); every chunk lacks its newline."""
    chunk, role, group, length = (
        np.array(column) for column in zip(*spans, strict=True)
    )
    docs = np.array([DOCS[one] for one in chunk])
    end = np.cumsum(length)
    return ResolvedSequence(
        number=0,
        id="s",
        key=7,
        method="standard",
        layout=layout,
        chunk=chunk,
        role=role,
        group=group,
        start=end - length,
        end=end,
        score=np.zeros(len(chunk), np.float32),
        doc=docs,
        doc_first=np.array([FIRST[doc] for doc in docs]),
        doc_stop=np.array([STOP[doc] for doc in docs]),
        char_start=chunk,
        char_end=chunk + 1,
        open_ended=chunk >= 0,
        tokens=np.array([TOKENS[one] for one in chunk]),
    )


A, B, C = (0, DOCUMENT, 0, 4), (1, DOCUMENT, 0, 3), (2, DOCUMENT, 0, 2)
JOIN = (-1, SEPARATOR, 0, 1)
D, E = (3, DOCUMENT, 1, 5), (4, DOCUMENT, 1, 6)
SOUND = (A, B, C, JOIN, D, E)


def problems(*spans, run=None):
    run = run or run_of()
    one = sequence(*spans, layout=run.layout)
    checks = (_span_problems, _separator_problems, _order_problems, _repeat_problems)
    return [problem for check in checks for problem in check(run, one)]


def test_whole_documents_with_a_separator_between_them_pass():
    assert problems(*SOUND) == []


def test_the_last_document_may_be_cut_in_a_chunk_or_between_two():
    assert (
        problems(*SOUND[:-1], (4, DOCUMENT, 1, 2), run=run_of(target_tokens=17)) == []
    )
    assert problems(*SOUND[:-1], run=run_of(target_tokens=15)) == []


@pytest.mark.parametrize(
    ("spans", "problem"),
    [
        ((B, A, C, JOIN, D, E), "is in the place of ⟦chunk 0⟧"),
        ((A, C, JOIN, (-1, SEPARATOR, 0, 3), D, E), "is in the place of ⟦chunk 1⟧"),
        ((A, B, (-1, SEPARATOR, 0, 3), D, E), "is not the last chunk of its document"),
        ((A, (1, DOCUMENT, 0, 2), C, JOIN, D, E), "is cut before the end"),
        ((A, B, C, JOIN, D, (4, DOCUMENT, 2, 6)), "is in the place of ⟦chunk 3⟧"),
        (
            (
                A,
                B,
                C,
                JOIN,
                (0, DOCUMENT, 1, 4),
                (1, DOCUMENT, 1, 3),
                (2, DOCUMENT, 1, 2),
            ),
            "holds document ⟦document 0⟧ twice",
        ),
        ((A, JOIN, B, C, JOIN, D, E), "does not follow a chunk that needs one"),
        ((A, B, (2, 0, 0, 2), JOIN, D, E), "has roles [0, 2]"),
    ],
)
def test_documents_out_of_order_incomplete_or_repeated(spans, problem):
    assert any(problem in found for found in problems(*spans))


K, N = (3, CONTEXT, 0, 5), (4, NEGATIVE, 0, 6)
# The same document, as that of the second group.
LATER = [(chunk, DOCUMENT, 1, length) for chunk, _, _, length in (A, B, C)]


def supported(*spans):
    tokens = sum(span[3] for span in spans)
    run = run_of(layout=Layout.SUPPORTED, target_tokens=tokens)
    return problems(*spans, run=run)


def test_a_document_behind_contexts_and_negatives_passes():
    assert supported(K, JOIN, N, JOIN, A, B, C) == []


def test_the_last_supported_document_may_be_cut_off():
    assert supported(K, JOIN, A, (1, DOCUMENT, 0, 2)) == []
    assert supported(K, JOIN, A) == []
    assert supported(K, JOIN, A, B, C, JOIN, (4, CONTEXT, 1, 3)) == []


@pytest.mark.parametrize(
    ("spans", "problem"),
    [
        ((N, JOIN, K, JOIN, A, B, C), "does not begin with a context"),
        ((A, B, C), "does not begin with a context"),
        ((K, JOIN, A, B, C, JOIN, N), "is not before its document"),
        ((K, JOIN, B, C), "is not the chunks of its document in order"),
        ((K, JOIN, A, C), "is not the chunks of its document in order"),
        (((0, CONTEXT, 0, 4), JOIN, A, B, C), "a chunk of the document behind it"),
        ((K, JOIN, (4, CONTEXT, 1, 6), JOIN, *LATER), "group 0 has no document"),
        ((K, JOIN, (4, CONTEXT, 2, 6), JOIN, A, B, C), "has groups out of order"),
        (((3, CONTEXT, 0, 2), JOIN, A, B, C), "is cut before the end"),
        ((K, JOIN, A, B, JOIN, (4, CONTEXT, 1, 6)), "is not the last chunk"),
    ],
)
def test_contexts_and_documents_in_the_wrong_places(spans, problem):
    assert any(problem in found for found in supported(*spans))


def test_a_missing_separator_between_two_chunks():
    assert any(
        "no separator" in found
        for found in _separator_problems(run_of(), sequence(A, B, C, D, E))
    )
    at_the_end = sequence(*SOUND)  # where nothing follows, it may be left out
    assert list(_separator_problems(run_of(), at_the_end)) == []


def test_a_chunk_and_a_separator_of_one_token_too_many():
    longer = (4, DOCUMENT, 1, 7)
    assert any("which has 6" in found for found in problems(*SOUND[:-1], longer))
    wide = (-1, SEPARATOR, 0, 2)
    assert any(
        "should have 1 tokens" in found for found in problems(A, B, C, wide, D, E)
    )


def test_bos_and_eos_stand_at_the_ends_and_nowhere_else():
    run = run_of(target_tokens=23, special={SEPARATOR: [9], BOS: [1], EOS: [2]})
    bos, eos = (-1, BOS, -1, 1), (-1, EOS, -1, 1)
    assert problems(bos, *SOUND, eos, run=run) == []
    assert any("bos at" in found for found in problems(*SOUND, eos, run=run))
    assert any(
        "spans [1, 8]" in found for found in problems(bos, eos, *SOUND, eos, run=run)
    )


def interleaved(*spans, target_tokens=22):
    return problems(*spans, run=run_of(Layout.INTERLEAVED, target_tokens))


def test_parts_of_documents_may_stand_between_each_other_in_their_order():
    assert interleaved(A, JOIN, D, JOIN, B, C, JOIN, E, target_tokens=23) == []


@pytest.mark.parametrize(
    ("spans", "problem"),
    [
        ((A, JOIN, D, JOIN, C, JOIN, B), "is in the place of ⟦chunk 1⟧"),
        ((A, JOIN, E, JOIN, D), "is in the place of ⟦chunk 3⟧"),
        (
            (A, JOIN, (3, DOCUMENT, 0, 5), JOIN, B),
            "has group 0, its document is number 1",
        ),
        (
            (A, JOIN, (3, DOCUMENT, 1, 2), JOIN, B),
            "is cut before the end of the sequence",
        ),
    ],
)
def test_parts_out_of_order_or_of_the_wrong_group(spans, problem):
    assert any(problem in found for found in interleaved(*spans))


def test_a_sequence_must_have_the_layout_of_its_run():
    one = sequence(*SOUND, layout=Layout.INTERLEAVED)
    assert list(_order_problems(run_of(), one)) == [
        "sequence 0 is interleaved, those of the run are concatenated"
    ]


# meta-chunks and negatives: document 0 is extended by chunks of document 1


def extended(*spans, min_gap_tokens=1, special=None):
    run = run_of(
        Layout.EXTENDED, target_tokens=sum(span[3] for span in spans), special=special
    )
    run.method, run.min_gap_tokens = "standard", min_gap_tokens
    return run, sequence(*spans, layout=Layout.EXTENDED)


M0, M1, M2 = (0, META, 0, 4), (1, META, 1, 3), (2, META, 2, 2)
N3, N4 = (3, NEGATIVE, 0, 5), (4, NEGATIVE, 1, 6)


def test_only_the_last_negative_may_be_cut():
    run, cut_first = extended(
        M0, JOIN, (3, NEGATIVE, 0, 2), JOIN, M1, JOIN, M2, JOIN, (4, NEGATIVE, 2, 6)
    )
    assert any("last negative" in found for found in _order_problems(run, cut_first))
    run, cut_last = extended(
        M0, JOIN, N3, JOIN, M1, JOIN, M2, JOIN, (4, NEGATIVE, 2, 3)
    )
    assert list(_order_problems(run, cut_last)) == []


def test_separators_fill_what_a_cut_between_characters_leaves_and_no_more():
    cut = (4, NEGATIVE, 0, 3)
    run, filled = extended(M0, JOIN, N3, JOIN, cut, *[JOIN] * 5)
    assert list(_separator_problems(run, filled)) == []
    run, overfull = extended(M0, JOIN, N3, JOIN, cut, *[JOIN] * 6)
    assert any(
        "fewer separators" in found for found in _separator_problems(run, overfull)
    )
    run, whole = extended(M0, JOIN, N3, JOIN, JOIN, cut)
    assert any("needs one" in found for found in _separator_problems(run, whole))


def test_a_part_of_a_separator_does_not_divide_two_chunks():
    special = {SEPARATOR: [9, 9], BOS: [], EOS: []}
    whole, part = (-1, SEPARATOR, 0, 2), (-1, SEPARATOR, 0, 1)
    cut = (3, NEGATIVE, 0, 3)
    run, divided = extended(cut, whole, part, M0, special=special)
    assert list(_separator_problems(run, divided)) == []
    run, joined = extended(cut, part, M0, special=special)
    assert any(
        "should have 2 tokens" in found for found in _separator_problems(run, joined)
    )
    run, at_the_end = extended(M0, whole, cut, part, special=special)
    assert list(_separator_problems(run, at_the_end)) == []


def test_a_gap_below_the_minimum_is_found(own_run):
    name = "negatives between meta-chunks"
    gaps = []
    for one in nextlong.open(own_run).sequences():
        metas = [place for place, span in enumerate(one.spans) if span.role == "meta"]
        between = [one.spans[first:last] for first, last in itertools.pairwise(metas)]
        gaps += [
            sum(span.length for span in spans if span.role == "negative")
            for spans in between
        ]
    change_recipe(own_run, "compose", "min_gap_tokens", min(gaps))
    sound = outcomes(own_run, "sequences")[name]
    assert (sound.checked, sound.breaches) == (len(gaps), 0)
    change_recipe(own_run, "compose", "min_gap_tokens", min(gaps) + 1)
    found = outcomes(own_run, "sequences")[name]
    assert found.breaches == gaps.count(min(gaps))
    assert (
        f"has {min(gaps)} tokens of negatives between it and the meta-chunk before"
        in found.examples[0]
    )


# cuts between characters


TEXT = "日本\nab"  # three tokens each of the first two characters, then one each


CUT_RUN = SimpleNamespace(
    is_exact=True,
    begins=lambda chunk: False,
    reference=Reference(train_bpe([], vocab_size=257)),
    setting=lambda section, key, default=None: default,
    special_ids={SEPARATOR: [9]},
)


def cut_problems(tokens, *, separators, role=NEGATIVE, separator=(9,), following=()):
    """Return what is wrong with a sequence of one chunk, cut to so many tokens, separators, and roles that follow."""
    run = SimpleNamespace(
        **{**vars(CUT_RUN), "special_ids": {SEPARATOR: list(separator)}}
    )
    roles = np.array([role, *[SEPARATOR] * separators, *following])
    others = len(roles) - 1
    one = SimpleNamespace(
        role=roles,
        chunk=np.array([5, *[-1] * others]),
        lengths=np.array([tokens, *[1] * others]),
        is_truncated=np.arange(len(roles)) == 0,
        where=lambda span: f"span {span}",
    )
    return list(_cut_problems(run, one, {5: Tokenized(CUT_RUN, 5, TEXT)}))


@pytest.mark.parametrize(
    ("tokens", "separators", "problem"),
    [
        (3, 1, ""),
        (3, 3, ""),
        (4, 1, "ends within a character; 1 tokens fewer would not"),
        (5, 1, "ends within a character; 2 tokens fewer would not"),
        (5, 0, "ends within a character; 2 tokens fewer would not"),
        (4, 0, "ends within a character; 1 tokens fewer would not"),
        (7, 1, "ends in a newline but a separator follows it"),
        (7, 0, ""),
        (8, 1, ""),
        (2, 1, "holds a part of a character only"),
    ],
)
def test_cuts_of_negatives(tokens, separators, problem):
    problems = cut_problems(tokens, separators=separators)
    assert [text for text in problems if problem not in text or not problem] == []
    assert bool(problems) == bool(problem)


def test_a_cut_negative_joins_no_meta_chunk():
    joined = cut_problems(3, separators=0, following=[META])
    assert joined == ["span 0 is cut within a line, but no separator follows it"]
    assert cut_problems(3, separators=0, following=[EOS]) == []
    assert cut_problems(3, separators=1, following=[META]) == []
    assert cut_problems(7, separators=0, following=[META]) == []  # behind a newline
    assert cut_problems(3, separators=0, separator=(), following=[META]) == []


def test_without_separators_nothing_could_fill():
    assert cut_problems(5, separators=0, separator=()) == []


def test_of_what_is_not_extended_less_than_a_character_may_be_left():
    assert cut_problems(2, separators=0, role=META) == []
    assert cut_problems(4, separators=0, role=META) == [
        "span 0 ends within a character; 1 tokens fewer would not"
    ]


def test_what_is_visible_is_a_character_at_least():
    assert [
        Tokenized(CUT_RUN, 5, TEXT).visible(tokens) for tokens in (1, 3, 5, 6, 8)
    ] == [
        "日",
        "日",
        "日",
        "日本",
        "日本\na",
    ]
