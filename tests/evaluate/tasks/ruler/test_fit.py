"""Fitting, with a tokenizer of words and a builder of so many of them."""

from itertools import islice
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nextlong.errors import EvaluateError
from nextlong.evaluate.task import Request
from nextlong.evaluate.tasks.ruler.fit import Built, fitting, largest, refuse_short, upper_bound

WORDS = SimpleNamespace(count=lambda text: len(text.split()))


def request(length):
    return Request(length, WORDS, None)


def built(size, *, question=3):
    return Built("w " * (size + question), "A:", ("x",))


@given(length=st.integers(1, 400), budget=st.integers(0, 20), upper=st.integers(1, 500))
def test_the_largest_context_that_fits_is_found(length, budget, upper):
    fits = [size for size in range(1, upper + 1) if size + 4 + budget <= length]
    found = largest(request(length), built, lower=1, upper=upper, budget=budget, step=1)
    assert found == max(fits, default=1)


@given(length=st.integers(20, 4000))
def test_the_bound_is_above_what_fits(length):
    assert upper_bound(request(length), built, step=5) >= largest(
        request(length), built, lower=5, upper=length, budget=0, step=5
    )


@given(size=st.integers(1, 60), step=st.integers(1, 9), length=st.integers(10, 60))
def test_a_sample_takes_steps_less_until_it_fits(size, step, length):
    (sample,) = islice(fitting(request(length), lambda _, used: built(used), size=size, step=step, budget=2), 1)
    fits = [used for used in range(size, 0, -step) if used + 6 <= length]
    assert (sample is None) == (not fits)
    if sample is not None:
        assert WORDS.count(sample.text) == max(fits) + 4


def test_it_ends_where_there_are_no_more_questions_and_goes_on_behind_one_that_never_fits():
    sizes = {0: 1, 1: 99, 2: 1}
    made = list(
        fitting(request(20), lambda index, _: built(sizes[index]) if index in sizes else None, size=1, step=1, budget=0)
    )
    assert [sample is None for sample in made] == [False, True, False]


def test_a_length_without_room_is_refused():
    refuse_short(request(1024), "vt", least=1024)
    with pytest.raises(EvaluateError, match="vt needs at least 1024 tokens, not 1,023"):
        refuse_short(request(1023), "vt", least=1024)
