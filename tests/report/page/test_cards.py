"""Cards: charts and tables show the numbers of the statistics; each cell says where its value stands, what is missing is a dash."""

import pytest
from tests.support.changed_stats import changed_json

import nextlong
from nextlong.report.page import cards
from nextlong.report.page.cells import Cell, Numbers, TableRow
from nextlong.runs.statistics.measure import measure

NAMES = ["this run"]
NOTHING = Cell("–")


@pytest.fixture(scope="module")
def made(shared_run):
    """The cards by name of runs that are the shared one but for some of its numbers."""
    plain = measure(nextlong.open(shared_run)).as_json()

    def of(*changed, names=NAMES):
        sections = cards.sections(
            Numbers([changed_json(plain, values) for values in changed], names)
        )
        return {card.name: card for section in sections.values() for card in section}

    return of


def told(card, start=""):
    """Return the texts of a card's first table by the names of its rows."""
    return {
        row.name: [cell.text for cell in row.cells]
        for row in card.tables[0].rows
        if row.name.startswith(start)
    }


def test_the_meta_document_is_orange_and_negatives_are_blue(made):
    card = made(
        {
            "tokens.total": 100,
            "tokens.by_role": {"meta": 20, "negative": 75, "separator": 4, "eos": 1},
        }
    )["roles"]
    assert '<rect class="own"' in card.chart
    assert "meta-document: 20.00 %" in card.chart
    assert "negatives: 75.00 %" in card.chart
    assert "separators and special tokens: 5.00 %" in card.chart
    assert told(card, "tokens: n") == {"tokens: negative": ["75 (75.00%)"]}


def test_a_rank_is_told_with_the_chunks_behind_it_and_the_cosine_of_random_pairs(made):
    ranks = [
        {"rank": 1, "mean": 0.5, "count": 411},
        {"rank": 50, "mean": 0.25, "count": 19},
    ]
    spread = {"mean": 0.0625, "p10": 0.0, "p50": 0.2, "p90": 0.5, "max": 0.99999}
    changed = {"similarity.by_rank": ranks, "similarity.random": spread}
    card = made(changed)["rank"]
    assert "rank 50: 0.2500 (n = 19)" in card.chart
    assert (
        card.chart.count("<title>random pairs of chunks: 0.0625</title>") == 2
    )  # the ends of a line
    assert card.tables[0].rows[1].cells == (
        Cell("0.2500 (n = 19)", 0.25, ("similarity", "by_rank", 1, "mean")),
    )
    most = Cell(
        "1.0000 (the same text twice)", 0.99999, ("similarity", "random", "max")
    )
    assert card.tables[0].rows[-1].cells == (most,)
    assert (
        "random pairs" not in made(changed | {"similarity.random": None})["rank"].chart
    )
    assert "rank" not in made({"similarity.by_rank": [], "similarity.random": None})


def test_what_one_of_several_runs_lacks_is_a_dash_or_an_empty_bar_for_it(made):
    ranks = [
        [{"rank": 1, "mean": 0.5, "count": 40}, {"rank": 8, "mean": 0.25, "count": 7}],
        [{"rank": 8, "mean": 0.125, "count": 9}],
    ]
    histogram = [
        {"low": 1, "high": 7, "count": 1},
        {"low": 8, "high": 15, "count": 3},
    ]
    exposure = {"mask": "sequence", "targets": 4, "mean": 9.0, "histogram": histogram}
    changed = [
        {"similarity.by_rank": of, "attention.exposure": ex}
        for of, ex in zip(ranks, ([exposure], []), strict=True)
    ]
    found = made(*changed, names=["a", "b"])
    assert told(found["rank"], "rank") == {
        "rank 1": ["0.5000 (n = 40)", "–"],
        "rank 8": ["0.2500 (n = 7)", "0.1250 (n = 9)"],
    }
    assert found["rank"].tables[0].rows[1].cells[1].path == (
        "similarity",
        "by_rank",
        0,
        "mean",
    )
    assert "a, 8–15: 75.0 %" in found["exposure"].chart
    assert "b, 8–15: 0.0 %" in found["exposure"].chart
    assert told(found["exposure"], "8–15") == {"8–15 tokens before": ["3 (75.0%)", "–"]}


def test_similarity_by_source_is_shown_where_a_run_has_several_sources(made):
    means = {"a": {"mean": 0.5, "count": 4}, "b": {"mean": 0.125, "count": 9}}
    changed = {"tokens.by_source": {"b": 2, "a": 1}, "similarity.by_source": means}
    card = made(changed)["source-cosine"]
    assert "<title>b: 0.1250</title>" in card.chart
    assert told(card) == {"b": ["0.1250 (n = 9)"], "a": ["0.5000 (n = 4)"]}
    assert "source-cosine" not in made(
        changed | {"similarity.by_source": {"a": means["a"]}}
    )


def test_each_attention_mask_has_its_context_and_its_work(made):
    exposure = [
        {
            "mask": mask,
            "targets": 2,
            "mean": mean,
            "histogram": [{"low": 1, "high": 1, "count": 2}],
        }
        for mask, mean in (("document", 9.0), ("sequence", 99.0))
    ]
    work = [{"mask": "document", "ranks": 4, "mean": 1.25, "worst": 2.0}]
    found = told(
        made({"attention.exposure": exposure, "attention.work": work})["exposure"]
    )
    assert found["document attention: mean tokens before"] == ["9"]
    assert found["sequence attention: 1 tokens before"] == ["2 (100.0%)"]
    assert found[
        "attention work, busiest of 4 devices, document attention (1: even)"
    ] == ["1.25 (at most 2.00)"]


def test_steps_stand_in_the_order_of_the_route_and_those_of_no_time_are_not_drawn(made):
    steps = [
        {"step": "ingest", "seconds": 99.5, "peak_bytes": 4e6, "bytes": 2_500_000},
        {"step": "rows", "seconds": 0.5, "peak_bytes": None, "bytes": 1},
        {"step": "embed", "seconds": None, "peak_bytes": None, "bytes": 0},
    ]
    card = made({"steps": steps})["cost"]
    assert "remove exact duplicates: 99.5 s" in card.chart
    assert "rows" not in card.chart
    assert "vectors" not in card.chart
    ingest, _, embed = card.tables[0].rows
    assert [cell.text for cell in ingest.cells] == ["99.5 s", "4 MB", "2.5 MB"]
    assert ingest.cells[2] == Cell("2.5 MB", 2_500_000, ("steps", 0, "bytes"))
    assert (embed.name, embed.cells[1]) == (
        "encode the chunks as vectors (embed)",
        NOTHING,
    )


def test_sources_stand_beside_their_shares_of_the_corpus(made):
    changed = {
        "tokens.by_source": {"a": 3, "b": 1},
        "corpus.chars_by_source": {"a": 10, "b": 10},
    }
    card = made(changed)["sources"]
    assert "<title>tokens of the sequences, a: 75.0 %</title>" in card.chart
    assert "<title>characters of the corpus, a: 50.0 %</title>" in card.chart
    assert told(card, "a") == {
        "a: tokens": ["3 (75.0%)"],
        "a: characters in the corpus": ["10 (50.0%)"],
    }
    alone = {"tokens.by_source": {"a": 3}, "corpus.chars_by_source": {"a": 9}}
    assert made(alone)["sources"].chart == ""
    chart = made(changed, alone, names=["base", "tail"])["sources"].chart
    assert all(f"<bdi>{name}</bdi>" in chart for name in ("base", "tail"))
    assert "<title>base, a: 75.0 %</title>" in chart
    assert "<title>tail, b: 0.0 %</title>" in chart
    assert "characters of the corpus" not in chart  # they have none in common


def test_sources_beyond_those_shown_are_added_up(made):
    names = [f"s{number:02}" for number in range(45)]
    many = {
        "tokens.by_source": dict.fromkeys(names, 10),
        "corpus.chars_by_source": dict.fromkeys(names, 30),
    }
    one = {"tokens.by_source": {names[0]: 7}, "corpus.chars_by_source": {names[0]: 21}}
    found = told(made(many, one, names=["a", "b"])["sources"])
    assert list(found)[:-1:2] == [f"{name}: tokens" for name in names[:40]]
    assert found["s00: characters in the corpus"] == ["30 (2.2%)", "21 (100.0%)"]
    assert found["5 more sources together"] == ["50", "0"]


def test_what_became_of_drafts_is_drawn_and_told_with_its_reasons_once_each(made):
    counts = {
        "documents": 9,
        "eligible": 5,
        "asked": "all",
        "drafts": 11,
        "kept": 5,
        "spare": 1,
        "untried": 2,
    }
    lost = ({"too long": 1, "too short": 2}, {"too few": 2, "too long": 3}, {})
    yields = [
        {"yields": counts | {"dropped": dropped, "dropped_examples": {}}}
        for dropped in lost
    ]
    chart = made(yields[0])["yield"].chart
    assert all(part in chart for part in ("kept: 5", "spare: 3", "dropped: 3"))
    assert "dropped" not in made(yields[2])["yield"].chart
    found = told(made(*yields[:2], names=["a", "b"])["yield"])
    assert [name for name in found if name.startswith("dropped")] == [
        "dropped: too long", "dropped: too short", "dropped: too few",
    ]  # fmt: skip
    assert (found["dropped: too long"], found["dropped: too few"]) == (
        ["1", "3"],
        ["–", "2"],
    )
    assert found["sequences requested"] == ["all", "all"]
    assert "documents that can be extended" in found
    assert "documents that can be used" in told(
        made({**yields[0], "setting.layout": "concatenated"})["yield"]
    )


def test_leaks_and_filters_are_told_where_a_run_counted_them(made):
    nothing = dict.fromkeys(
        (
            "near_duplicates.chunks",
            "near_duplicates.documents",
            "corpus.keywords",
            "corpus.unshared_keywords",
            "documents.in_parts",
        )
    )
    changed = nothing | {
        "near_duplicates.repeated_passages": 2,
        "corpus.contaminated": {"q.json": 7},
        "negatives": None,
    }
    cut = {"tokens.cut_off": {"tokens": 1_500, "of_tokens": 12_000}}
    assert told(made(changed | cut)["near"]) == {
        "of these, because of a shared 100-word passage": ["2"],
        "document tokens cut off at the ends of sequences": ["1,500 of 12,000"],
        "chunks that share text with q.json": ["7"],
        "chunks that occur twice in a sequence (must be 0)": ["0"],
    }
    repeating = made(changed | {"setting.negatives": "self-repeat"})["near"]
    assert "chunks that occur twice in a sequence (by design)" in told(repeating)


def test_reuse_and_hubs_point_at_their_own_entries(made):
    reuse = {
        "distinct_chunks": 5,
        "mean": 1.5,
        "max": 4,
        "histogram": [
            {"low": 1, "high": 1, "chunks": 3},
            {"low": 2, "high": 3, "chunks": 2},
        ],
        "hubs": [{"source_id": "a", "chunk_id": 9, "ordinal": 2, "uses": 4}],
    }
    found = made({"chunks.reuse": reuse})
    rows = {row.name: row.cells[0] for row in found["reuse"].tables[0].rows}
    assert rows["chunks used 2–3×"] == Cell(
        "2 (40.0%)", 2, ("chunks", "reuse", "histogram", 1, "chunks")
    )
    assert rows["uses of a chunk, mean"].text == "1.50"
    assert list(found["hubs"].tables[0].rows) == [
        TableRow("a · chunk 2", (Cell("4", 4, ("chunks", "reuse", "hubs", 0, "uses")),))
    ]
