"""Sequences of whole documents, by hand: two documents of chunks 0–2 and 3–4, lengths 4, 3, 2 and 5, 6."""

from types import SimpleNamespace

import numpy as np
import pytest

from damage import breaches, change_recipe, outcomes
from nextlong.recipe.keys import NEGATIVES
from nextlong.schemas import BOS, DOCUMENT, EOS, META, NEGATIVE, SEPARATOR, Layout
from nextlong.verify.run_files import ResolvedSequence
from nextlong.verify.sequences import _gaps, _order_problems, _repeat_problems, _separator_problems, _span_problems

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
        is_exact=layout == Layout.EXTENDED,
        setting=lambda section, key, default=None: settings.get((section, key), default),
        special_ids=special or {SEPARATOR: [9], BOS: [], EOS: []},
    )


def sequence(*spans, layout=Layout.CONCATENATED):
    """Spans are (chunk, role, group, length); every chunk lacks its newline."""
    chunk, role, group, length = (np.array(column) for column in zip(*spans, strict=True))
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
    assert problems(*SOUND[:-1], (4, DOCUMENT, 1, 2), run=run_of(target_tokens=17)) == []
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
            (A, B, C, JOIN, (0, DOCUMENT, 1, 4), (1, DOCUMENT, 1, 3), (2, DOCUMENT, 1, 2)),
            "holds document ⟦document 0⟧ twice",
        ),
        ((A, JOIN, B, C, JOIN, D, E), "does not follow a chunk that needs one"),
        ((A, B, (2, 0, 0, 2), JOIN, D, E), "has roles [0, 2]"),
    ],
)
def test_documents_out_of_order_incomplete_or_repeated(spans, problem):
    assert any(problem in found for found in problems(*spans))


def test_two_separators_missing():
    one = sequence(A, B, C, D, E)
    assert (
        list(_separator_problems(run_of(), one)) == []
    )  # one chunk may lack its separator where it just fills the budget
    twice = sequence(A, B, C, D, E, A)
    assert any("no separator follows it" in found for found in _separator_problems(run_of(), twice))


def test_bos_and_eos_stand_at_the_ends_and_nowhere_else():
    run = run_of(target_tokens=23, special={SEPARATOR: [9], BOS: [1], EOS: [2]})
    bos, eos = (-1, BOS, -1, 1), (-1, EOS, -1, 1)
    assert problems(bos, *SOUND, eos, run=run) == []
    assert any("has bos at spans []" in found for found in problems(*SOUND, eos, run=run))
    assert any("has eos at spans [1, 8]" in found for found in problems(bos, eos, *SOUND, eos, run=run))


def interleaved(*spans, target_tokens=22):
    return problems(*spans, run=run_of(Layout.INTERLEAVED, target_tokens))


def test_parts_of_documents_may_stand_between_each_other_in_their_order():
    assert interleaved(A, JOIN, D, JOIN, B, C, JOIN, E, target_tokens=23) == []


@pytest.mark.parametrize(
    ("spans", "problem"),
    [
        ((A, JOIN, D, JOIN, C, JOIN, B), "is in the place of ⟦chunk 1⟧"),
        ((A, JOIN, E, JOIN, D), "is in the place of ⟦chunk 3⟧"),
        ((A, JOIN, (3, DOCUMENT, 0, 5), JOIN, B), "has group 0, its document is number 1"),
        ((A, JOIN, (3, DOCUMENT, 1, 2), JOIN, B), "is cut before the end of the sequence"),
    ],
)
def test_parts_out_of_order_or_of_the_wrong_group(spans, problem):
    assert any(problem in found for found in interleaved(*spans))


def test_a_sequence_must_have_the_layout_of_its_run():
    one = sequence(*SOUND, layout=Layout.INTERLEAVED)
    assert list(_order_problems(run_of(), one)) == ["sequence 0 says it is interleaved, the run's are concatenated"]


# meta-chunks and negatives: document 0 is extended by chunks of document 1


def extended(*spans, min_gap_tokens=1, special=None):
    run = run_of(Layout.EXTENDED, target_tokens=sum(span[3] for span in spans), special=special)
    run.method, run.min_gap_tokens = "standard", min_gap_tokens
    return run, sequence(*spans, layout=Layout.EXTENDED)


M0, M1, M2 = (0, META, 0, 4), (1, META, 1, 3), (2, META, 2, 2)
N3, N4 = (3, NEGATIVE, 0, 5), (4, NEGATIVE, 1, 6)


def test_gaps_count_the_negatives_between_two_meta_chunks():
    _, one = extended(M0, JOIN, N3, JOIN, M1, JOIN, M2, JOIN, (4, NEGATIVE, 2, 6))
    assert _gaps(one) == [(4, 5), (6, 0)]


def test_only_the_last_negative_may_be_cut():
    run, cut_first = extended(M0, JOIN, (3, NEGATIVE, 0, 2), JOIN, M1, JOIN, M2, JOIN, (4, NEGATIVE, 2, 6))
    assert any("is cut, but is not the last negative" in found for found in _order_problems(run, cut_first))
    run, cut_last = extended(M0, JOIN, N3, JOIN, M1, JOIN, M2, JOIN, (4, NEGATIVE, 2, 3))
    assert list(_order_problems(run, cut_last)) == []


def test_separators_fill_what_a_cut_between_characters_leaves_and_no_more():
    cut = (4, NEGATIVE, 0, 3)
    run, filled = extended(M0, JOIN, N3, JOIN, cut, *[JOIN] * 5)
    assert list(_separator_problems(run, filled)) == []
    run, overfull = extended(M0, JOIN, N3, JOIN, cut, *[JOIN] * 6)
    assert any("more separators than a cut" in found for found in _separator_problems(run, overfull))
    run, whole = extended(M0, JOIN, N3, JOIN, JOIN, cut)
    assert any("does not follow a chunk that needs one" in found for found in _separator_problems(run, whole))


def test_a_gap_below_the_minimum_is_found(own_run):
    name = "negatives between meta-chunks"
    assert outcomes(own_run, "sequences")[name].checked > 10
    assert breaches(own_run, "sequences") == {}
    change_recipe(own_run, "compose", "min_gap_tokens", 100_000)
    assert (
        "tokens of negatives between it and the meta-chunk before, compose.min_gap_tokens is"
        in breaches(own_run, "sequences")[name]
    )
