"""Corpora that nobody has seen, through the whole pipeline: verify passes every run, without a margin, and finds what is planted.

CI runs ninety more by bench/invented_corpora.py, which runs as many as one asks for.
"""

from collections import Counter

import pytest

from tests.support.invented import (
    breaches,
    counted,
    recipe_of,
    run_and_verify,
    write_tokenizer,
)
from tests.support.larger_cases import thorough

AT_ONCE = 5
FIRST = 20  # of these corpora, several documents are extended


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory):
    return write_tokenizer(tmp_path_factory.mktemp("invented") / "tokenizer.json")


@pytest.mark.parametrize("first", [FIRST, *thorough(0)])
def test_invented_corpora_pass(first, tokenizer, tmp_path):
    found, checked = {}, Counter()
    for seed in range(first, first + AT_ONCE):
        outcomes = run_and_verify(recipe_of(seed, tmp_path / str(seed), tokenizer))
        checked.update(counted(outcomes))
        if wrong := breaches(outcomes):
            found[seed] = wrong
    assert found == {}
    assert checked["negatives"] > 10
    assert checked["gaps"] > 0
    assert checked["cuts"] > 0
