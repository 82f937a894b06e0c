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


def test_a_place_or_a_bin_that_one_run_lacks_is_a_dash_for_it():
    ranks = [
        [{"rank": 1, "mean": 0.5, "count": 40}, {"rank": 8, "mean": 0.25, "count": 7}],
        [{"rank": 8, "mean": 0.125, "count": 9}],
    ]
    rows = numbers.by_rank([{"similarity_by_rank": one} for one in ranks])
    assert [(row.name, [cell.text for cell in row.cells]) for row in rows[1::2]] == [
        ("rank 1: n", ["40", "–"]),
        ("rank 8: n", ["7", "9"]),
    ]
    assert rows[::2] == [
        TableRow("rank 1", (Cell("0.5000", 0.5, ("similarity_by_rank", 0, "mean")), NOTHING)),
        TableRow(
            "rank 8",
            (
                Cell("0.2500", 0.25, ("similarity_by_rank", 1, "mean")),
                Cell("0.1250", 0.125, ("similarity_by_rank", 0, "mean")),
            ),
        ),
    ]
    counts = [[{"least": 64, "most": 127, "count": 3}], [{"least": 1, "most": 1, "count": 2000}]]
    plain = [{"h": one} for one in counts]
    assert [(row.name, [cell.text for cell in row.cells]) for row in numbers.bins(plain, "h", form="{} tokens")] == [
        ("1 tokens", ["–", "2,000"]),
        ("64–127 tokens", ["3", "–"]),
    ]
    assert (
        numbers.bins([{"h": [{"least": -0.05, "most": 0.0, "count": 1}]}], "h", form="from {}")[0].name == "from -0.05"
    )


def test_a_random_pair_of_the_same_text_is_named_and_keeps_its_value():
    spread = {"mean": 0.25, "p10": 0.0, "p50": 0.2, "p90": 0.5, "max": 0.99999}
    *others, most = numbers.random_pairs([{"random_similarity": spread}])
    assert most.cells == (Cell("1.0000 (the same text twice)", 0.99999, ("random_similarity", "max")),)
    assert [row.cells[0].text for row in others] == ["0.2500", "0.0000", "0.2000", "0.5000"]


def stats(**changed):
    yields = {"documents": 9, "eligible": 5, "asked": "all", "drafts": 5, "kept": 4, "spare": 0, "untried": 0}
    return {"layout": Layout.EXTENDED, "yields": {**yields, "dropped": {}}, **changed}


def test_reasons_of_all_runs_stand_once_each_in_the_order_in_which_they_come():
    plain = [stats(), stats()]
    plain[0]["yields"]["dropped"] = {"too long": 1}
    plain[1]["yields"]["dropped"] = {"too few": 2, "too long": 3}
    rows = {row.name: [cell.text for cell in row.cells] for row in numbers.yields(plain)}
    assert [name for name in rows if name.startswith("dropped")] == ["dropped: too long", "dropped: too few"]
    assert (rows["dropped: too long"], rows["dropped: too few"]) == (["1", "3"], ["–", "2"])
    assert rows["sequences requested"] == ["all", "all"]
    assert "documents that can be extended" in rows
    assert "documents that can be used" in {row.name for row in numbers.yields([stats(layout=Layout.CONCATENATED)])}


def test_rows_that_say_nothing_of_any_run_are_left_out():
    plain = [
        {
            "near_duplicates": None,
            "repeated_passages": 2,
            "contaminated": {"q.json": 7},
            "near_duplicate_documents": None,
        }
    ]
    plain[0]["keywords"] = None
    plain[0] |= {"own_document_negatives": None, "repeated_chunks": 0}
    assert [(row.name, row.cells[0].text) for row in numbers.filtered(plain)] == [
        ("of these, because of a shared 100-word passage", "2"),
        ("chunks that share text with q.json", "7"),
        ("chunks that occur twice in a sequence (must be 0)", "0"),
    ]


def test_sources_beyond_those_shown_are_added_up():
    names = [f"s{number:02}" for number in range(45)]
    plain = [
        {"tokens_by_source": dict.fromkeys(names, 10), "corpus_by_source": dict.fromkeys(names, 30)},
        {"tokens_by_source": {names[0]: 7}, "corpus_by_source": {names[0]: 21}},
    ]
    *shown, rest = numbers.sources(plain)
    assert [row.name for row in shown[::2]] == [f"{name}: tokens" for name in names[:40]]
    assert (shown[1].name, shown[1].cells[1].value) == ("s00: characters in the corpus", 21)
    assert (rest.name, [cell.text for cell in rest.cells]) == ("5 more sources together", ["50", "0"])


def test_costs_stand_in_the_order_of_the_route_each_at_its_own_place():
    plain = {
        "steps": [
            {"step": "ingest", "seconds": 1.25, "peak_bytes": 4e6, "bytes": 2_500_000},
            {"step": "embed", "seconds": 60, "peak_bytes": None, "bytes": 0},
        ]
    }
    ingest, embed = numbers.costs(plain)
    assert [cell.text for cell in ingest.cells] == ["1.2 s", "4 MB", "2.5 MB"]
    assert ingest.cells[2] == Cell("2.5 MB", 2_500_000, ("steps", 0, "bytes"))
    assert (embed.name, embed.cells[1], embed.cells[0].path) == (
        "encode the chunks as vectors (embed)",
        NOTHING,
        ("steps", 1, "seconds"),
    )


def test_reuse_and_hubs_point_at_their_own_entries():
    reuse = {
        "distinct_chunks": 5,
        "mean": 1.5,
        "max": 4,
        "histogram": [{"least": 1, "most": 1, "chunks": 3}, {"least": 2, "most": 3, "chunks": 2}],
        "hubs": [{"source_id": "a", "chunk_id": 9, "ordinal": 2, "uses": 4}],
    }
    rows = {row.name: row.cells[0] for row in numbers.reuse([{"reuse": reuse}])}
    assert rows["chunks used 2–3×"] == Cell("2", 2, ("reuse", "histogram", 1, "chunks"))
    assert rows["uses of a chunk, mean"].text == "1.50"
    (hub,) = numbers.hubs({"reuse": reuse})
    assert (hub.name, hub.cells) == ("a · chunk 2", (Cell("4", 4, ("reuse", "hubs", 0, "uses")),))


def test_negatives_are_named_only_where_documents_are_extended():
    keys = {"sequences": 1, "target_tokens": 2, "tokens": 2, "distinct_documents": 1, "random_similarity": None}
    spread = {"distance_tokens": None, "similarity": {"mean": 0.5}}
    names = [
        {row.name for row in numbers.first([stats(layout=layout, **keys, **spread)])}
        for layout in (Layout.EXTENDED, Layout.CONCATENATED)
    ]
    assert "mean cosine of the negatives" in names[0]
    assert "mean cosine of the documents" in names[1]
    assert not [name for name in names[0] if name.startswith("tokens between")]


def test_a_mean_cosine_stands_beside_that_of_random_pairs():
    keys = {"similarity": {"mean": 0.5}, "random_similarity": {"mean": 0.0625}}
    names = [row.name for row in numbers.first([stats(**keys)])]
    assert "mean cosine of the negatives (random pairs: 0.06)" in names


def test_words_of_a_recipe_are_explained_and_their_values_stay_as_they_are():
    (row,) = numbers.settings([{"negatives": "tail"}, {"negatives": "of tomorrow"}])
    assert row.cells == (
        Cell("tail: the most similar chunks, least similar first", "tail", ("negatives",)),
        Cell("of tomorrow", "of tomorrow", ("negatives",)),
    )
