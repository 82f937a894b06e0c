"""Lengths as people write them."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nextlong.errors import RecipeError
from nextlong.recipe import Recipe
from nextlong.recipe.lengths import read_length

PLAIN = {"run_dir": "r", "ingest": {"sources": [{"path": "a"}]}, "tokenizer": "gpt2"}


@given(st.integers(0, 10**9), st.sampled_from([("", 1), ("k", 1024), ("K", 1024), ("m", 1 << 20), ("M", 1 << 20)]))
def test_a_length_is_its_number_times_its_unit(number, unit):
    assert read_length(f"{number}{unit[0]}") == number * unit[1]


@pytest.mark.parametrize("text", ["", "k", "-8k", "8kk", "8 k", "8.5k", "0x8k", "８k", "9" * 5000 + "k"])
def test_other_texts_are_none(text):
    assert read_length(text) is None


def test_a_recipe_takes_them_where_lengths_are():
    recipe = Recipe.from_dict(
        PLAIN | {"chunk": {"max_chars": "2k"}, "compose": {"target_tokens": "64K"}},
        overrides=["export.pack=128k", "encoder.sentence_transformers.max_tokens=8k"],
    )
    assert (recipe.chunk.max_chars, recipe.compose.target_tokens, recipe.export.pack) == (2048, 65_536, 131_072)
    assert recipe.encoder.sentence_transformers.max_tokens == 8192
    assert recipe == Recipe.from_dict(recipe.as_data())


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("ingest.sources[0].max_documents=500k", "only lengths in tokens or characters take them: write 500000"),
        ("compose.sequences=1M", "write 1000000"),
        ("compose.target_tokens=128kb", "compose.target_tokens: a length is a whole number: 131072, or in short 128k"),
        ("compose.target_tokens=1g", "or 1M (M is 1,048,576) (it is '1g')"),
        ("export.pack=1.5M", "export.pack: a length is a whole number: 131072, or in short 128k"),
        ("compose.target_tokens=0k", "compose.target_tokens must be greater than or equal to 2 (it is '0k')"),
        ("compose.target_tokens=2048M", "must be less than 2147483648"),
    ],
)
def test_counts_and_what_is_no_length_are_refused(override, message):
    with pytest.raises(RecipeError) as caught:
        Recipe.from_dict(PLAIN, overrides=[override])
    assert message in str(caught.value)
