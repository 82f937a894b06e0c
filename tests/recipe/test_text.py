import pytest
from hypothesis import given
from hypothesis import strategies as st

from nextlong.errors import RecipeError
from nextlong.recipe.text import key_of, read_file

NAMES = st.from_regex(r"[a-z_]{1,8}", fullmatch=True)


@given(first=NAMES, below=st.lists(NAMES | st.integers(0, 99), max_size=4))
def test_a_key_is_printed_as_set_takes_it(first, below):
    key = key_of((first, *below))
    assert key.replace("[", ".").replace("]", "").split(".") == [
        first,
        *map(str, below),
    ]
    assert key.count("[") == sum(isinstance(part, int) for part in below)


def test_the_whole_recipe_has_no_key():
    assert key_of(()) == ""


@pytest.mark.parametrize(
    "text", ["a: " + "[" * 200_000, "- " * 200_000, "[\n" * 200_000]
)
def test_a_file_of_any_depth_is_refused_and_crashes_nothing(tmp_path, text):
    path = tmp_path / "deep.yaml"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(RecipeError, match=r"deep\.yaml"):
        read_file(path, init="nextlong init {}")
