"""What every format of the user's files promises, whoever reads it."""

import pytest

from nextlong.inputs.file_format import FileFormat, no_head
from nextlong.inputs.files import COMPRESSIONS
from nextlong.inputs.formats import FORMATS, format_by_name
from nextlong.recipe import Source

EVERY = pytest.mark.parametrize("made", FORMATS.values(), ids=lambda made: made.name)


def test_no_head_has_no_columns_and_reads_nothing():
    assert list(no_head(None, None)) == []


@EVERY
def test_a_format_is_known_by_its_endings_and_may_be_named_in_a_recipe(made):
    assert Source(path="x", format=made.name).format == made.name
    assert made.suffixes
    for suffix in made.suffixes:
        assert suffix == suffix.lower()
        assert suffix[0] == "."
        assert suffix not in COMPRESSIONS
        assert format_by_name(f"A/B{suffix.upper()}") is made


def test_no_two_formats_have_an_ending_in_common():
    suffixes = [suffix for made in FORMATS.values() for suffix in made.suffixes]
    assert sorted(set(suffixes)) == sorted(suffixes)


@EVERY
def test_what_compresses_itself_is_not_looked_for_in_a_compressed_file(made):
    for suffix in made.suffixes:
        found = format_by_name(f"a{suffix}.gz")
        assert found is (made if made.compression == "around" else None)


@EVERY
def test_without_columns_there_is_no_head_to_find_any_in(made):
    assert made.has_columns or made.head is no_head


def test_what_a_format_can_is_said_by_name():
    with pytest.raises(TypeError):
        FileFormat("x", (".x",), None, no_head, None)
