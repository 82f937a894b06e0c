"""Pictures: drawn alike each time from numbers made by hand, in the page's own colour; nothing where there is nothing."""

import re
import sys
from types import SimpleNamespace

import pytest

from nextlong.errors import NextlongError
from nextlong.report.page import pictures
from nextlong.runs.tally import Bin


def stats(**parts):
    return SimpleNamespace(**parts)


@pytest.mark.parametrize(("edge", "said"), [((1, 1), "1"), ((64, 127), "64–127"), ((1024, 2047), "1,024–2,047")])
def test_a_bin_of_whole_numbers_in_words(edge, said):
    assert pictures.spoken_bin(*edge) == said


def test_sources_stand_by_their_tokens_in_all_runs_and_by_name_where_these_are_equal():
    one, other = stats(tokens_by_source={"b": 5, "a": 5, "c": 1}), stats(tokens_by_source={"c": 20, "d": 2})
    assert pictures.source_names([("A", one), ("B", other)]) == ["c", "a", "b", "d"]


def test_long_and_broken_names_are_shortened_to_one_line():
    assert pictures._label("two\n lines") == "two lines"
    assert len(pictures._label("x" * 23)) == pictures._LABEL_CHARS == 22
    assert pictures._label("x" * 22) == "x" * 22
    assert pictures._label("x" * 23).endswith("x…")


def test_what_draws_is_asked_for_where_it_is_not_installed(monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(NextlongError, match=r"say: pip install 'nextlong\[report\]'"):
        pictures.draw(lambda figure: True)


@pytest.mark.heavy
def test_a_picture_takes_the_pages_colour_and_is_drawn_alike_each_time():
    run = stats(yields=stats(kept=3, spare=0, untried=0, dropped={"x": 1, "y": 2}))
    first, again = (pictures.outcome([("A", run)]) for _ in range(2))
    assert first == again
    assert "currentColor" in first
    assert pictures._INK not in first
    texts = re.findall(r"<text[^>]*>([^<]*)</text>", first)
    assert {"kept", "dropped", "drafts of a sequence"} <= set(texts)
    assert not {"more than asked", "not needed"} & set(texts)  # of which there are none
    assert "<dc:date>" not in first


@pytest.mark.heavy
def test_nothing_is_drawn_of_nothing():
    empty = stats(yields=stats(kept=0, spare=0, untried=0, dropped={}), chunk_tokens_histogram=(), near_copies=None)
    empty.repeated_passages = empty.near_copy_documents = empty.chars_per_token = None
    runs = [("A", empty)]
    assert pictures.outcome(runs) is None
    assert pictures.chunk_tokens(runs) is None
    assert pictures.near_copies(runs) is None
    assert pictures.chars_per_token(runs) is None


@pytest.mark.heavy
def test_bins_of_all_runs_stand_side_by_side():
    runs = [
        ("A", stats(chunk_tokens_histogram=(Bin(1, 63, 3), Bin(64, 127, 1)))),
        ("B", stats(chunk_tokens_histogram=(Bin(128, 255, 4),))),
    ]
    texts = re.findall(r"<text[^>]*>([^<]*)</text>", pictures.chunk_tokens(runs))
    assert [text for text in texts if "–" in text] == ["1–63", "64–127", "128–255"]
    assert {"A", "B"} <= set(texts)
