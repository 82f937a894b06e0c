"""What sections of the page are made of: names escaped, numbers whole beside what is shown of them."""

import json
from xml.etree.ElementTree import tostring

import pytest

from nextlong.report.page.numbers import Cell, row
from nextlong.report.page.parts import letters, number, section, table, wide


@pytest.mark.parametrize(("count", "told"), [(1, ["this run"]), (2, ["A", "B"]), (6, list("ABCDEF"))])
def test_one_run_is_this_run_and_several_have_letters(count, told):
    assert letters(count) == told


def test_a_section_is_named_by_its_heading():
    made = section("costs", "What it cost", wide(table("Seconds", [], ["A"]), "Seconds"))
    (heading,) = made.iter("h2")
    assert made.get("id") == "costs"
    assert (heading.get("id"), heading.text) == (made.get("aria-labelledby"), "What it cost")


def test_what_may_be_wide_is_reached_by_the_keyboard_and_has_a_name():
    made = wide(table("Seconds", [], ["A"]), "Seconds")
    assert (made.get("tabindex"), made.get("role"), made.get("aria-label")) == ("0", "region", "Seconds")


def test_a_table_has_a_column_a_run_and_says_where_each_number_stands():
    plain = [{"yields": {"drafts": 1234.5678}}, {"yields": {"drafts": 2}}]
    made = table("Drafts", [row("drafts", plain, ["yields", "drafts"], "{:,.0f}")], ["A", "B"])
    assert [head.text for head in made.iter("th")] == ["what", "A", "B", "drafts"]
    cells = list(made.iter("data"))
    assert [cell[0].text for cell in cells] == ["1,235", "2"]
    assert [json.loads(cell.get("value")) for cell in cells] == [1234.5678, 2]
    assert [json.loads(cell.get("data-path")) for cell in cells] == [["yields", "drafts"]] * 2


def test_a_name_from_outside_is_isolated_and_escaped():
    made = table("Sources", [row("<b>\u202e", [{"n": 1}], ["n"], is_foreign=True)], ["A"])
    assert "<bdi>&lt;b&gt;" in tostring(made, encoding="unicode")


def test_a_cell_without_a_place_is_its_text():
    assert number(Cell("–", None, ())) == "–"
