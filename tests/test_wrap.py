"""Wrap: words and lines stay whole."""

from nextlong.wrap import wrapped


def test_lines_stay_apart_and_long_words_whole():
    assert wrapped("a b\n\nc /a/path/that-is-longer d", 5) == ["a b", "", "c", "/a/path/that-is-longer", "d"]


def test_what_goes_on_below_a_line_is_indented():
    assert wrapped("a b c\nd e f", 4, indent="  ") == ["a b", "  c", "d e", "  f"]
