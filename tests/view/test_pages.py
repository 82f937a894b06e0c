from xml.etree.ElementTree import tostring

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nextlong.view.pages import choice, more, row, table, url

pytestmark = pytest.mark.browser


def text_of(element):
    return tostring(element, encoding="unicode")


@given(st.text(st.characters(codec="utf-8")), st.text(st.characters(codec="utf-8")))
def test_no_name_leads_out_of_its_place_in_a_link(variant, query):
    link = url(variant, "sequences", 3, text=query, none=None)
    path, _, asked = link.partition("?")
    assert path.count("/") == 3
    assert path.endswith("/sequences/3")
    assert bool(asked) == bool(query)
    assert "none=" not in asked  # a query that is called so has its = written otherwise
    assert link.isascii()


def test_a_choice_shows_what_was_chosen():
    shown = text_of(choice("Role", "role", "meta", ["negative", "meta"]))
    assert shown.count("selected") == 2  # name and value
    assert 'value="meta" selected="selected"' in shown
    assert "selected" not in text_of(choice("Role", "role", "", ["negative"]))


def test_a_list_goes_on_or_says_that_this_is_all():
    assert "href" not in text_of(more(None, "This is all.", into="rows"))
    assert 'href="/next"' in (shown := text_of(more("/next", "40 of 90", into="rows")))
    assert "data-searching" not in shown
    assert "data-searching" in text_of(more("/next", "40 of 90", into="rows", is_searching=True))


def test_cells_are_escaped_and_the_first_names_the_row():
    shown = text_of(table("rows", ["a"], [row("<b>", "&")], caption="c"))
    assert '<th scope="row">&lt;b&gt;</th><td>&amp;</td>' in shown
