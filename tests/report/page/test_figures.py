"""Charts of the report show the numbers of the statistics, in the colours of the strip."""

from nextlong.report.page import figures

NAMES = ["this run"]


def test_the_meta_document_is_orange_and_negatives_are_blue():
    plain = [{"tokens": 100, "tokens_by_role": {"meta": 20, "negative": 75, "separator": 4, "eos": 1}}]
    chart = figures.roles(plain, NAMES)
    assert '<rect class="own"' in chart
    assert "meta-document: 20.00 %" in chart
    assert "negatives: 75.00 %" in chart
    assert "separators and special tokens: 5.00 %" in chart


def test_hovering_a_rank_says_how_many_chunks_are_behind_it():
    ranks = [{"rank": 1, "mean": 0.5, "count": 411}, {"rank": 50, "mean": 0.25, "count": 19}]
    plain = {"layout": "extended", "similarity_by_rank": ranks, "random_similarity": {"mean": 0.0625}}
    chart = figures.by_rank([plain], NAMES)
    assert "rank 50: 0.2500 (n = 19)" in chart
    assert chart.count("<title>random pairs of chunks: 0.0625</title>") == 2  # the ends of a line
    assert "random pairs" not in figures.by_rank([plain | {"random_similarity": None}], NAMES)
    assert figures.by_rank([plain | {"similarity_by_rank": []}], NAMES) == ""


def test_similarity_by_source_is_drawn_where_a_run_has_several_sources():
    means = {"a": {"mean": 0.5, "count": 4}, "b": {"mean": 0.125, "count": 9}}
    plain = {"tokens_by_source": {"b": 2, "a": 1}, "similarity_by_source": means}
    assert "<title>b: 0.1250</title>" in figures.by_source([plain], NAMES)
    assert figures.by_source([plain | {"similarity_by_source": {"a": means["a"]}}], NAMES) == ""


def test_steps_that_take_no_time_are_not_drawn():
    steps = [{"step": "ingest", "seconds": 99.5}, {"step": "rows", "seconds": 0.5}, {"step": "embed", "seconds": None}]
    chart = figures.seconds([{"steps": steps}], NAMES)
    assert "remove exact duplicates: 99.5 s" in chart
    assert "rows" not in chart
    assert "embed" not in chart


def test_one_source_of_one_run_is_no_chart():
    plain = {"tokens_by_source": {"a": 3}, "corpus_by_source": {"a": 9}}
    assert figures.sources([plain], NAMES) == ""
    assert figures.sources([plain] * 2, ["base", "tail"])


def test_sources_stand_beside_their_shares_of_the_corpus():
    plain = {"tokens_by_source": {"a": 3, "b": 1}, "corpus_by_source": {"a": 10, "b": 10}}
    chart = figures.sources([plain], NAMES)
    assert "<title>tokens of the sequences, a: 75.0 %</title>" in chart
    assert "<title>characters of the corpus, a: 50.0 %</title>" in chart


def test_runs_are_called_by_their_names():
    corpora = [{"corpus_by_source": {"a": 1, "b": 1}}, {"corpus_by_source": {"a": 1}}]
    plain = [{"tokens_by_source": {"a": 3, "b": 1}} | corpora[0], {"tokens_by_source": {"a": 1}} | corpora[1]]
    chart = figures.sources(plain, ["base", "tail"])
    assert all(f"<bdi>{name}</bdi>" in chart for name in ("base", "tail"))
    assert "<title>base, a: 75.0 %</title>" in chart
    assert "<title>tail, b: 0.0 %</title>" in chart
    assert "characters of the corpus" not in chart  # they have none in common


def test_only_what_happened_to_drafts_is_in_the_legend():
    yields = {"kept": 5, "spare": 1, "untried": 2, "dropped": {"too long": 1, "too short": 2}}
    chart = figures.outcome([{"yields": yields}], NAMES)
    assert [name in chart for name in ("kept: 5", "spare: 3", "dropped: 3")] == [True, True, True]
    assert "dropped" not in figures.outcome([{"yields": yields | {"dropped": {}}}], NAMES)


def test_a_run_without_an_exposure_leaves_its_bars_empty():
    histogram = [{"least": 1, "most": 7, "count": 1}, {"least": 8, "most": 15, "count": 3}]
    chart = figures.exposure([{"exposure": [{"histogram": histogram}]}, {"exposure": []}], ["a", "b"])
    assert "a, 8–15: 75.0 %" in chart
    assert "b, 8–15: 0.0 %" in chart
