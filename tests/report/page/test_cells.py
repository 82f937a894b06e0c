"""Rows of numbers, from hand-made statistics: each cell says where its value stands, and what is missing is a dash."""

from tests.support.invented_stats import plain

from nextlong.report.page.cells import Cell, Numbers, TableRow
from nextlong.schemas import Layout

NOTHING = Cell("–")


def of(*plain):
    """Return the numbers of runs that have no name."""
    return Numbers(plain, [""] * len(plain))


def test_a_cell_holds_the_value_as_it_is_and_as_it_is_shown():
    plain = [{"a": {"b": 1234567}}, {"a": None}, {}, {"a": {"b": "word"}}]
    assert of(*plain).row("n", "a", "b") == TableRow(
        "n",
        (
            Cell("1,234,567", 1234567, ("a", "b")),
            NOTHING,
            NOTHING,
            Cell("word", "word", ("a", "b")),
        ),
    )
    assert of({"x": 0}).row("n", "x").cells == (
        Cell("0", 0, ("x",)),
    )  # 0 is a number, not nothing
    assert of({"x": 0.256}).row("n", "x", form="{:.1%}").cells == (
        Cell("25.6%", 0.256, ("x",)),
    )


def test_a_bin_that_one_run_lacks_is_a_dash_for_it():
    counts = [
        [{"low": 64, "high": 127, "count": 3}],
        [{"low": 1, "high": 1, "count": 2000}],
    ]
    plain = [{"h": one} for one in counts]
    assert [
        (row.name, [cell.text for cell in row.cells])
        for row in of(*plain).bins("h", form="{} tokens")
    ] == [
        ("1 tokens", ["–", "2,000 (100.0%)"]),
        ("64–127 tokens", ["3 (100.0%)", "–"]),
    ]
    below_0 = of({"h": [{"low": -0.05, "high": 0.0, "count": 1}]})
    assert below_0.bins("h", form="from {}")[0].name == "from -0.05"


def test_negatives_are_named_only_where_documents_are_extended():
    for layout, what in (
        (Layout.EXTENDED, "negatives"),
        (Layout.CONCATENATED, "documents"),
    ):
        stats = plain(layout, distance_tokens=None, similarity__random=None)
        rows = {row.cells[0].path: row.name for row in of(stats).first()}
        assert rows["similarity", "cosine", "mean"].endswith(what)
        assert ("distance_tokens", "p50") not in rows


def test_words_of_a_recipe_are_explained_and_their_values_stay_as_they_are():
    path = ("setting", "negatives")
    (row,) = of(
        {"setting": {"negatives": "tail"}}, {"setting": {"negatives": "of tomorrow"}}
    ).settings()
    assert row.cells == (
        Cell("tail: the most similar chunks, least similar first", "tail", path),
        Cell("of tomorrow", "of tomorrow", path),
    )


def test_a_mean_cosine_stands_beside_that_of_random_pairs():
    stats = plain(Layout.EXTENDED, similarity__random={"mean": 0.0625})
    rows = {row.cells[0].path: row.name for row in of(stats).first()}
    assert rows["similarity", "cosine", "mean"].endswith("(random pairs: 0.06)")
