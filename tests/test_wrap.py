"""Wrap: words and lines stay whole."""

from nextlong.wrap import wrapped


def test_lines_stay_apart_and_long_words_whole():
    assert wrapped("a b\n\nc /a/path/that-is-longer d", 5) == ["a b", "", "c", "/a/path/that-is-longer", "d"]
