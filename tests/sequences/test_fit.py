"""Composing, in hand-written integers; and what holds for any lengths."""

from collections import Counter
from itertools import pairwise
from types import MappingProxyType

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nextlong import schemas
from nextlong.rng import rng_for
from nextlong.schemas import DropReason
from nextlong.sequences import fit
from nextlong.sequences.fit import Dropped, Group, Rules, SizedChunk


def groups(*own):
    """Build groups from (meta tokens, {candidate: tokens}); meta-chunks are chunks 100, 101, …; none needs a separator."""
    return [
        Group(
            SizedChunk(100 + number, meta, closed=True),
            [SizedChunk(*one, closed=True) for one in candidates.items()],
        )
        for number, (meta, candidates) in enumerate(own)
    ]


def compose_spans(
    groups, *, rng=None, blocked=(), near_duplicates=MappingProxyType({}), **rules
):
    return fit.compose_spans(
        groups,
        Rules(**rules),
        rng=rng,
        blocked=blocked,
        near_duplicates=near_duplicates,
    )


def gaps_of(spans):
    """Return the tokens of negatives between each two meta-chunks."""
    gaps, held = [], None
    for span in spans:
        if span.role == schemas.META:
            gaps += [] if held is None else [held]
            held = 0
        elif span.role == schemas.NEGATIVE and held is not None:
            held += span.end - span.start
    return gaps


def laid(groups, target_tokens, **options):
    """Return (chunk, start, end) of each span; a separator is J, the special tokens B and E."""
    spans = compose_spans(groups, target_tokens=target_tokens, **options)
    assert isinstance(spans, list), spans
    names = {schemas.SEPARATOR: "J", schemas.BOS: "B", schemas.EOS: "E"}
    return [(names.get(span.role, span.chunk), span.start, span.end) for span in spans]


TWO = groups((3, {1: 4, 2: 2, 3: 5}), (2, {4: 5, 5: 3, 6: 6}))


def test_exact_shares_the_budget_and_carries_over():
    # 20 - 3 - 2 = 15. The first may use 7 and uses 4 + 2; the second then has 9: 5 + 3,
    # and 1 of the next.
    assert laid(TWO, 20) == [
        (100, 0, 3), (1, 3, 7), (2, 7, 9),
        (101, 9, 11), (4, 11, 16), (5, 16, 19), (6, 19, 20),
    ]  # fmt: skip


def test_of_near_duplicates_the_one_that_comes_first_is_placed():
    # 15 to fill, 7 for the first group: 1 (4) and 2 (2); 4 and 6 repeat them, so 5 (3)
    # and then 3 (5) and 7 (1 of 2) serve.
    some = groups((3, {1: 4, 2: 2, 3: 5}), (2, {4: 5, 5: 3, 6: 6, 3: 5, 7: 2}))
    placed = laid(some, 20, near_duplicates={1: [4], 4: [1], 2: [6], 6: [2]})
    assert [chunk for chunk, _, _ in placed] == [100, 1, 2, 101, 5, 3, 7]


def test_what_repeats_a_chunk_that_is_not_placed_may_serve():
    blocked = laid(TWO, 20, near_duplicates={1: [4], 4: [1]}, blocked={1})
    assert [chunk for chunk, _, _ in blocked] == [100, 2, 3, 101, 4, 5]


def test_exact_with_the_meta_chunk_behind_its_negatives():
    assert laid(TWO, 20, position="tail") == [
        (1, 0, 4), (2, 4, 6), (100, 6, 9),
        (4, 9, 14), (5, 14, 17), (6, 17, 18), (101, 18, 20),
    ]  # fmt: skip


def test_exact_with_the_meta_chunk_anywhere_among_them():
    class Places:
        """The places that random positions would draw; an edge case needs to choose them."""

        def __init__(self, *places):
            self.places = iter(places)

        def integers(self, bound):
            place = next(self.places)
            assert place < bound
            return place

    assert laid(TWO, 20, position="random", rng=Places(1, 3)) == [
        (1, 0, 4), (100, 4, 7), (2, 7, 9),
        (4, 9, 14), (5, 14, 17), (6, 17, 18), (101, 18, 20),
    ]  # fmt: skip


def test_random_positions_are_drawn_over_all_places():
    many = groups((2, {1: 2, 2: 2, 3: 2}))
    firsts = {
        next(
            start
            for chunk, start, _ in laid(
                many, 8, position="random", rng=rng_for(0, "position", key)
            )
            if chunk == 100
        )
        for key in range(40)
    }
    assert firsts == {0, 2, 4, 6}


def test_paper_concatenates_all_and_cuts_at_the_target():
    assert laid(TWO, 20, fit="paper") == [
        (100, 0, 3),
        (1, 3, 7),
        (2, 7, 9),
        (3, 9, 14),
        (101, 14, 16),
        (4, 16, 20),
    ]


def test_paper_may_lose_a_meta_chunk():
    assert laid(TWO, 20, fit="paper", position="tail") == [
        (1, 0, 4), (2, 4, 6), (3, 6, 11), (100, 11, 14), (4, 14, 19), (5, 19, 20),
    ]  # fmt: skip


def test_paper_drops_what_falls_short():
    assert compose_spans(TWO, target_tokens=31, fit="paper") == Dropped(
        DropReason.TOO_FEW_NEGATIVES, 30
    )
    assert len(laid(TWO, 30, fit="paper")) == 8


def test_a_negative_serves_the_first_that_takes_it():
    same = {1: 5, 2: 5, 3: 5}
    assert laid(groups((1, same), (1, same)), 12) == [
        (100, 0, 1),
        (1, 1, 6),
        (101, 6, 7),
        (2, 7, 12),
    ]
    assert laid(groups((1, same), (1, same)), 17, fit="paper") == [
        (100, 0, 1), (1, 1, 6), (2, 6, 11), (3, 11, 16), (101, 16, 17),
    ]  # fmt: skip


def test_whole_negatives_fill_the_target_without_a_cut():
    assert laid(groups((2, {1: 3, 2: 4})), 9) == [(100, 0, 2), (1, 2, 5), (2, 5, 9)]


def test_other_groups_serve_where_the_last_has_no_candidates_left():
    # 10 left. The first has 2 for itself and, of its half, 2 more; the last takes 3 and
    # has no more. Of the 3 that are left the first takes 2 whole; for the next, the
    # last's own negative is cut.
    own = groups((1, {1: 2, 2: 2, 3: 2, 5: 3}), (1, {4: 3}))
    assert laid(own, 12) == [
        (100, 0, 1),
        (1, 1, 3),
        (2, 3, 5),
        (3, 5, 7),
        (5, 7, 10),
        (101, 10, 11),
        (4, 11, 12),
    ]
    assert laid(own, 11) == [
        (100, 0, 1),
        (1, 1, 3),
        (2, 3, 5),
        (3, 5, 7),
        (101, 7, 8),
        (4, 8, 11),
    ]


def test_only_the_last_negative_of_a_sequence_is_cut():
    # The last has nothing that fills the 4 left, nor does the first without cutting its
    # own negative there.
    own = groups((1, {1: 2, 2: 2, 3: 9}), (1, {4: 2}))
    assert compose_spans(own, target_tokens=12) == Dropped(
        DropReason.TOO_FEW_NEGATIVES, 8
    )


def test_a_meta_chunk_without_any_candidate_is_not_made_up_for():
    for own in (
        groups((1, {1: 4, 2: 3, 3: 9}), (1, {})),
        groups((1, {}), (1, {1: 4, 2: 3, 3: 9})),
    ):
        assert compose_spans(own, target_tokens=12) == Dropped(
            DropReason.NO_NEGATIVES, 2
        )


def test_the_document_alone_fills_the_target():
    own = groups((5, {1: 9}), (5, {2: 9}))
    assert compose_spans(own, target_tokens=10) == Dropped(DropReason.TOO_LONG, 10)
    for target_tokens in (
        11,
        12,
        19,
    ):  # whole negatives for the first, and one token for the last
        assert compose_spans(own, target_tokens=target_tokens) == Dropped(
            DropReason.TOO_LITTLE_ROOM, 10
        )
    assert laid(own, 20) == [(100, 0, 5), (1, 5, 14), (101, 14, 19), (2, 19, 20)]


def test_no_gap_holds_fewer_negatives_than_asked():
    own = groups((2, {1: 2, 2: 4, 3: 4}), (2, {4: 9}), (2, {5: 3, 6: 9}))
    # Even shares of 18 would give the first 6, the second nothing and the last 12.
    assert laid(own, 24, min_gap_tokens=3) == [
        (100, 0, 2), (1, 2, 4), (2, 4, 8), (101, 8, 10), (4, 10, 19), (102, 19, 21), (5, 21, 24),
    ]  # fmt: skip
    assert compose_spans(own, target_tokens=24, min_gap_tokens=4) == Dropped(
        DropReason.TOO_LITTLE_ROOM, 6
    )
    assert compose_spans(own, target_tokens=40, min_gap_tokens=11) == Dropped(
        DropReason.NO_NEGATIVES, 6
    )


def test_the_last_meta_chunk_has_the_least_negatives_too():
    # The last has one token of negatives, and the others can fill the rest.
    own = groups((1, {1: 2, 2: 1}), (1, {3: 1}))
    assert laid(own, 6) == [
        (100, 0, 1), (1, 1, 3), (2, 3, 4), (101, 4, 5), (3, 5, 6),
    ]  # fmt: skip
    assert compose_spans(own, target_tokens=6, min_gap_tokens=2) == Dropped(
        DropReason.TOO_LITTLE_ROOM, 2
    )


def test_each_meta_chunk_has_its_nearest_before_any_has_a_second():
    same = {1: 3, 2: 3, 3: 3, 4: 3}
    placed = laid(groups((1, same), (1, same), (1, {5: 9})), 21)
    assert [chunk for chunk, _, _ in placed] == [100, 1, 3, 101, 2, 4, 102, 5]


def test_random_positions_leave_no_gap_empty():
    own = groups((1, {1: 2, 2: 2}), (1, {3: 2, 4: 2}), (1, {5: 2, 6: 2}))
    orders = set()
    for key in range(60):
        spans = compose_spans(
            own,
            target_tokens=15,
            position="random",
            min_gap_tokens=2,
            rng=rng_for(0, "p", key),
        )
        orders.add(tuple(span.chunk for span in spans))
        assert min(gaps_of(spans)) >= 2
    assert len(orders) > 8


def test_too_few_candidates_to_reach_the_target():
    assert compose_spans(TWO, target_tokens=31) == Dropped(
        DropReason.TOO_FEW_NEGATIVES, 30
    )
    assert laid(TWO, 30)[-1] == (6, 24, 30)
    assert compose_spans(groups((4, {})), target_tokens=9) == Dropped(
        DropReason.TOO_FEW_NEGATIVES, 4
    )


# separators and special tokens


def test_a_separator_follows_what_does_not_end_in_a_newline():
    own = [
        Group(SizedChunk(100, 3), [SizedChunk(1, 4)]),
        Group(SizedChunk(101, 2, closed=True), [SizedChunk(2, 5, closed=True)]),
    ]
    assert laid(own, 16, separator_tokens=1) == [
        (100, 0, 3), ("J", 3, 4), (1, 4, 8), ("J", 8, 9), (101, 9, 11), (2, 11, 16),
    ]  # fmt: skip


def test_a_cut_negative_is_followed_by_a_separator():
    own = [Group(SizedChunk(100, 3, closed=True), [SizedChunk(1, 9, closed=True)])]
    assert laid(own, 8, separator_tokens=2) == [(100, 0, 3), (1, 3, 6), ("J", 6, 8)]
    assert laid(own, 8, separator_tokens=2, position="tail") == [
        (1, 0, 3),
        ("J", 3, 5),
        (100, 5, 8),
    ]


def test_no_separator_where_there_is_only_room_for_one():
    own = [Group(SizedChunk(100, 3, closed=True), [SizedChunk(1, 9, closed=True)])]
    assert laid(own, 5, separator_tokens=2) == [(100, 0, 3), (1, 3, 5)]


def test_no_cut_negative_joins_the_meta_chunk_behind_it():
    own = [Group(SizedChunk(100, 3, closed=True), [SizedChunk(1, 9, closed=True)])]
    # Two tokens are left: a separator would leave none for the negative.
    assert compose_spans(
        own, target_tokens=5, separator_tokens=2, position="tail"
    ) == Dropped(DropReason.TOO_FEW_NEGATIVES, 3)
    assert laid(own, 6, separator_tokens=2, position="tail") == [
        (1, 0, 1),
        ("J", 1, 3),
        (100, 3, 6),
    ]


def test_where_a_cut_would_join_the_meta_chunk_other_groups_take_more():
    first = Group(SizedChunk(100, 1, closed=True), [SizedChunk(1, 3, closed=True)])
    first.candidates.append(SizedChunk(2, 2, closed=True))
    last = Group(SizedChunk(101, 1, closed=True), [SizedChunk(3, 4, closed=True)])
    last.candidates.append(SizedChunk(4, 9, closed=True))
    options = {"target_tokens": 10, "separator_tokens": 1}
    # Behind whole negatives of 3 and 4 tokens, one token is left.
    assert laid([first, last], **options)[-1] == (4, 9, 10)
    assert laid([first, last], **options, position="tail") == [
        (1, 0, 3), (2, 3, 5), (100, 5, 6), (3, 6, 8), ("J", 8, 9), (101, 9, 10),
    ]  # fmt: skip


def test_what_other_groups_leave_has_room_for_the_separator_of_a_cut():
    first = Group(SizedChunk(100, 1, closed=True), [SizedChunk(1, 1, closed=True)])
    first.candidates.append(SizedChunk(2, 2, closed=True))
    last = Group(SizedChunk(101, 1, closed=True), [SizedChunk(3, 2, closed=True)])
    options = {"target_tokens": 6, "separator_tokens": 2, "min_gap_tokens": 1}
    # With chunk 2 in the first group, one token would be left for chunk 3.
    assert laid([first, last], **options, position="tail") == [
        (1, 0, 1), (100, 1, 2), (3, 2, 3), ("J", 3, 5), (101, 5, 6),
    ]  # fmt: skip


def test_a_meta_chunk_at_a_random_place_joins_no_cut_negative():
    own = [Group(SizedChunk(100, 3, closed=True), [SizedChunk(1, 4, closed=True)])]
    own[0].candidates.append(SizedChunk(2, 9, closed=True))
    own[0].candidates.append(SizedChunk(3, 9, closed=True))
    places = set()
    for key in range(20):
        spans = compose_spans(
            own,
            target_tokens=8,
            separator_tokens=1,
            position="random",
            rng=rng_for(0, "position", key),
        )
        places.add(tuple(span.chunk for span in spans))
    # One token is left behind chunk 1. It may end the sequence, but not precede chunk
    # 100.
    assert places == {(100, 1, 2), (1, 100, 2), (2, schemas.NO_CHUNK, 100)}


def test_separators_count_against_the_budget():
    own = [Group(SizedChunk(100, 3), [SizedChunk(1, 4), SizedChunk(2, 4)])]
    # 12 - 3 - 1 = 8: 4 + 1 whole, and 3: 2 of the next and a separator
    assert laid(own, 12, separator_tokens=1) == [
        (100, 0, 3),
        ("J", 3, 4),
        (1, 4, 8),
        ("J", 8, 9),
        (2, 9, 11),
        ("J", 11, 12),
    ]
    assert compose_spans(own, target_tokens=4, separator_tokens=1) == Dropped(
        DropReason.TOO_LONG, 4
    )
    # Only one token of the next fits beside a separator, and what fits exactly has
    # none.
    assert laid(own, 11, separator_tokens=1)[-2:] == [(2, 9, 10), ("J", 10, 11)]
    assert laid(own, 10, separator_tokens=1)[-1] == (2, 9, 10)


def test_the_paper_cut_may_fall_into_a_separator():
    own = [Group(SizedChunk(100, 3), [SizedChunk(1, 4)])]
    assert laid(own, 9, fit="paper", separator_tokens=3) == [
        (100, 0, 3),
        ("J", 3, 6),
        (1, 6, 9),
    ]
    assert laid(own, 5, fit="paper", separator_tokens=3) == [(100, 0, 3), ("J", 3, 5)]


@pytest.mark.parametrize("fit", ["exact", "paper"])
def test_special_tokens_stand_at_both_ends_and_are_counted(fit):
    own = groups((3, {1: 4, 2: 9}))
    assert laid(own, 12, fit=fit, bos_tokens=1, eos_tokens=2) == [
        ("B", 0, 1), (100, 1, 4), (1, 4, 8), (2, 8, 10), ("E", 10, 12),
    ]  # fmt: skip


def test_special_tokens_may_be_what_makes_a_document_too_long():
    own = groups((3, {1: 9}))
    assert laid(own, 5) == [(100, 0, 3), (1, 3, 5)]
    assert compose_spans(own, target_tokens=5, bos_tokens=1, eos_tokens=1) == Dropped(
        DropReason.TOO_LONG, 3
    )


def test_a_chunk_without_tokens_leaves_no_span():
    assert laid(groups((0, {1: 0, 2: 5})), 4) == [(2, 0, 4)]


# for any lengths

TOKENS = st.integers(2, 9)


@st.composite
def any_groups(draw):
    """One to five meta-chunks whose candidates overlap, as those of neighbours in a document do."""
    lengths = [(draw(TOKENS), draw(st.booleans())) for _ in range(25)]
    own = []
    for number in range(draw(st.integers(1, 5))):
        chosen = draw(st.lists(st.integers(0, 24), unique=True, max_size=12))
        meta = SizedChunk(100 + number, draw(TOKENS), closed=draw(st.booleans()))
        own.append(
            Group(meta, [SizedChunk(chunk, *lengths[chunk]) for chunk in chosen])
        )
    return own


SETTINGS = {
    "target_tokens": st.integers(2, 120),
    "position": st.sampled_from(["head", "tail", "random"]),
    "min_gap_tokens": st.integers(1, 12),
    "separator_tokens": st.integers(0, 2),
    "bos_tokens": st.integers(0, 1),
    "eos_tokens": st.integers(0, 1),
}


def tile(spans, target_tokens):
    bounds = [span.start for span in spans] + [target_tokens]
    return (
        bounds[0] == 0
        and [span.end for span in spans] == bounds[1:]
        and all(a < b for a, b in pairwise(bounds))
    )


@given(
    own=any_groups(),
    settings=st.fixed_dictionaries(SETTINGS),
    fit=st.sampled_from(["exact", "paper"]),
)
def test_spans_tile_exactly_the_target_and_use_no_chunk_twice(own, settings, fit):
    spans = compose_spans(own, fit=fit, rng=rng_for(0, "position"), **settings)
    if isinstance(spans, Dropped):
        return
    assert tile(spans, settings["target_tokens"])
    chunks = [span.chunk for span in spans if span.chunk != schemas.NO_CHUNK]
    assert len(set(chunks)) == len(chunks)
    tokens = {
        piece.chunk: piece.tokens
        for group in own
        for piece in (group.meta, *group.candidates)
    }
    cut = [
        span
        for span in spans
        if span.chunk >= 0 and span.end - span.start < tokens[span.chunk]
    ]
    assert len(cut) <= 1
    if fit == "exact":
        negatives = [span for span in spans if span.role == schemas.NEGATIVE]
        assert all(span in (negatives[-1:]) for span in cut)
        least = settings["min_gap_tokens"]
        assert all(tokens >= least for tokens in gaps_of(spans))
        of_groups = Counter()
        for span in negatives:
            of_groups[span.group] += span.end - span.start
        assert all(of_groups[number] >= least for number in range(len(own)))
    assert all(
        span.end - span.start <= tokens[span.chunk] for span in spans if span.chunk >= 0
    )


@given(own=any_groups(), settings=st.fixed_dictionaries(SETTINGS))
def test_no_chunk_begins_within_a_line_of_another(own, settings):
    spans = compose_spans(own, rng=rng_for(0, "position"), **settings)
    if isinstance(spans, Dropped) or not settings["separator_tokens"]:
        return
    ends_line = {
        (piece.chunk, piece.tokens): piece.closed
        for group in own
        for piece in (group.meta, *group.candidates)
    }
    for before, after in pairwise(spans):
        if before.chunk >= 0 and after.chunk >= 0:
            assert ends_line.get((before.chunk, before.end - before.start), False)


@given(own=any_groups(), settings=st.fixed_dictionaries(SETTINGS))
def test_exact_holds_every_meta_chunk_whole_and_in_order(own, settings):
    spans = compose_spans(own, rng=rng_for(0, "position"), **settings)
    if isinstance(spans, Dropped):
        return
    metas = [span for span in spans if span.role == schemas.META]
    assert [(span.chunk, span.end - span.start) for span in metas] == [
        (group.meta.chunk, group.meta.tokens) for group in own
    ]
    assert [span.group for span in spans if span.group >= 0] == sorted(
        span.group for span in spans if span.group >= 0
    )


@given(own=any_groups(), settings=st.fixed_dictionaries(SETTINGS))
def test_negatives_are_the_nearest_that_were_free(own, settings):
    spans = compose_spans(own, rng=rng_for(0, "position"), **settings)
    if isinstance(spans, Dropped):
        return
    used = {span.chunk for span in spans}
    for number, group in enumerate(own):
        taken = [
            span.chunk
            for span in spans
            if span.role == schemas.NEGATIVE and span.group == number
        ]
        ranked = [piece.chunk for piece in group.candidates]
        before_last = ranked[: ranked.index(taken[-1]) + 1] if taken else []
        others = used - set(taken)
        free = [chunk for chunk in before_last if chunk not in others]
        # A candidate is passed over if no cut of it leaves room for a separator.
        is_cut = number == len(own) - 1 and settings["position"] != "head"
        compared = len(taken) - 1 if is_cut else None
        assert free[:compared] == taken[:compared]


@given(own=any_groups(), settings=st.fixed_dictionaries(SETTINGS))
def test_nothing_is_dropped_that_could_be_filled(own, settings):
    result = compose_spans(own, rng=rng_for(0, "position"), **settings)
    room = settings["target_tokens"] - settings["bos_tokens"] - settings["eos_tokens"]
    separator, least = settings["separator_tokens"], settings["min_gap_tokens"]
    own_tokens = sum(
        group.meta.tokens + (0 if group.meta.closed else separator) for group in own
    )
    if not isinstance(result, Dropped):
        assert own_tokens + len(own) * least <= room
        return
    costs = [
        {
            piece.chunk: piece.tokens + (0 if piece.closed else separator)
            for piece in group.candidates
        }
        for group in own
    ]
    distinct = {chunk: cost for group in costs for chunk, cost in group.items()}
    if result.reason == DropReason.TOO_LONG:
        assert result.tokens == own_tokens >= room
    elif result.reason == DropReason.TOO_LITTLE_ROOM:
        # Whole negatives of at most 9 tokens and a separator go beyond the least by no
        # more than that, unless the others have taken candidates of the last group, or
        # the target takes nearly all negatives that there are, so that the cut negative
        # leaves it less than the least.
        shares_candidates = any(costs[-1].keys() & other.keys() for other in costs[:-1])
        takes_nearly_all = (
            own_tokens + sum(distinct.values()) < room + least + separator
        )
        assert own_tokens < room
        assert (
            shares_candidates
            or takes_nearly_all
            or room < own_tokens + len(own) * (least + 9 + separator) + separator
        )
    elif result.reason == DropReason.NO_NEGATIVES:
        overlapping = any(
            set(a) & set(b) for number, a in enumerate(costs) for b in costs[:number]
        )
        assert overlapping or any(
            sum(group.values()) < least + len(group) * separator or not group
            for group in costs
        )
    else:
        # Within a separator of the target a cut may be impossible; nothing but the last
        # group's negatives is cut.
        missing_tokens = room - result.tokens
        assert (
            own_tokens + sum(distinct.values()) < room + separator
            or (settings["position"] != "head" and missing_tokens <= separator)
            or sum(costs[-1].values()) < room - own_tokens
        )
