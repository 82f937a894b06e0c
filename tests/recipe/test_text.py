from hypothesis import given
from hypothesis import strategies as st

from nextlong.recipe.text import key_of

NAMES = st.from_regex(r"[a-z_]{1,8}", fullmatch=True)


@given(first=NAMES, below=st.lists(NAMES | st.integers(0, 99), max_size=4))
def test_a_key_is_printed_as_set_takes_it(first, below):
    key = key_of((first, *below))
    assert key.replace("[", ".").replace("]", "").split(".") == [first, *map(str, below)]
    assert key.count("[") == sum(isinstance(part, int) for part in below)


def test_the_whole_recipe_has_no_key():
    assert key_of(()) == ""
