"""Rows of numbers, from hand-made statistics: each cell says where its value stands, and what is missing is a dash."""

from nextlong.report.page import numbers
from nextlong.report.page.numbers import Cell, TableRow
from nextlong.schemas import Layout

NOTHING = Cell("–")


def test_a_cell_holds_the_value_as_it_is_and_as_it_is_shown():
    plain = [{"a": {"b": 1234567}}, {"a": None}, {}, {"a": {"b": "word"}}]
    assert numbers.row("n", plain, ("a", "b")) == TableRow(
        "n", (Cell("1,234,567", 1234567, ("a", "b")), NOTHING, NOTHING, Cell("word", "word", ("a", "b")))
    )
    assert numbers.row("n", [{"x": 0}], ("x",)).cells == (Cell("0", 0, ("x",)),)  # 0 is a number, not nothing
    assert numbers.row("n", [{"x": 0.256}], ("x",), "{:.1%}").cells == (Cell("25.6%", 0.256, ("x",)),)


def test_a_bin_that_one_run_lacks_is_a_dash_for_it():
    counts = [[{"least": 64, "most": 127, "count": 3}], [{"least": 1, "most": 1, "count": 2000}]]
    plain = [{"h": one} for one in counts]
    assert [(row.name, [cell.text for cell in row.cells]) for row in numbers.bins(plain, "h", form="{} tokens")] == [
        ("1 tokens", ["–", "2,000 (100.0%)"]),
        ("64–127 tokens", ["3 (100.0%)", "–"]),
    ]
    assert (
        numbers.bins([{"h": [{"least": -0.05, "most": 0.0, "count": 1}]}], "h", form="from {}")[0].name == "from -0.05"
    )


def test_negatives_are_named_only_where_documents_are_extended():
    keys = {"sequences": 1, "target_tokens": 2, "tokens": 2, "distinct_documents": 1, "random_similarity": None}
    spread = {"distance_tokens": None, "similarity": {"mean": 0.5}}
    names = [
        {row.name for row in numbers.first([{"layout": layout, **keys, **spread}])}
        for layout in (Layout.EXTENDED, Layout.CONCATENATED)
    ]
    assert "mean cosine of the negatives" in names[0]
    assert "mean cosine of the documents" in names[1]
    assert not [name for name in names[0] if name.startswith("tokens between")]


def test_a_mean_cosine_stands_beside_that_of_random_pairs():
    keys = {"similarity": {"mean": 0.5}, "random_similarity": {"mean": 0.0625}}
    names = [row.name for row in numbers.first([{"layout": Layout.EXTENDED, **keys}])]
    assert "mean cosine of the negatives (random pairs: 0.06)" in names


def test_words_of_a_recipe_are_explained_and_their_values_stay_as_they_are():
    (row,) = numbers.settings([{"negatives": "tail"}, {"negatives": "of tomorrow"}])
    assert row.cells == (
        Cell("tail: the most similar chunks, least similar first", "tail", ("negatives",)),
        Cell("of tomorrow", "of tomorrow", ("negatives",)),
    )
