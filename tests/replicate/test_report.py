"""The page of a replication in its three forms, from scores that are made up."""

import io
from types import SimpleNamespace

import pytest
from rich.console import Console

from nextlong.replicate.recipe import PRESETS, Replication
from scored_rows import row

pytestmark = pytest.mark.heavy


@pytest.fixture
def finished(done, measured):
    """The same, with what its finished stages recorded."""
    done.models = (SimpleNamespace(stage=SimpleNamespace(record={"tokens": 98_304})),)
    done.documents = SimpleNamespace(record={"documents": {"train": 1234, "held-out": 56}})
    return done


def test_the_page_says_what_was_made_from_what(finished):
    from nextlong.replicate import report, scores

    about, without_preset, verdict, attention = report._lead(finished)
    assert "Corpus: 1,234 documents to train on, 56 held out, from made up." in about
    assert "pretrained on 98,304 tokens in rows of 128" in about
    assert "Seeds 0, 1, 2: " in about
    assert "preset" not in about
    assert without_preset.startswith("The recipe has no preset")
    assert verdict.startswith("Methods: nextlong is ahead of standard")
    assert attention == scores.PAPER_ATTENTION


def test_a_preset_says_what_it_can_show_and_what_not(finished):
    from nextlong.replicate import report

    finished.recipe = Replication.from_dict({**finished.recipe.model_dump(mode="json"), "preset": "smoke"})
    about, can, cannot, *_ = report._lead(finished)
    assert ", preset smoke; " in about
    assert can == f"It can show {PRESETS['smoke'].shows}"
    assert cannot == f"It cannot show {PRESETS['smoke'].cannot}"


def test_three_forms_hold_the_same_numbers_and_the_figures_lie_beside_them(finished, tmp_path):
    from nextlong.replicate import report

    finished.out.mkdir()
    told = io.StringIO()
    report.write(finished, Console(file=told, width=500))
    markdown, latex, html = ((finished.out / f"report.{suffix}").read_text("utf-8") for suffix in ("md", "tex", "html"))
    for form in (markdown, latex, html):
        assert "98,304" in form
        assert "41.0" in form
        assert "62.58" in form
    names = sorted(path.name for path in (finished.out / "figures").iterdir())
    assert names == [
        f"methods-{name}.{suffix}" for name in ("gain-by-distance", "score-by-length") for suffix in ("png", "svg")
    ]
    assert all(f"(figures/{name})" in markdown for name in names if name.endswith(".svg"))
    assert html.count("<svg") == 2
    assert (
        f"report: {finished.out / 'report.html'} (.md, .tex), 2 figures in {finished.out / 'figures'}"
        in told.getvalue()
    )


def test_as_json_says_where_the_page_is_and_what_it_says(finished):
    from nextlong.replicate import report

    assert report.as_json(finished) == {
        "report": str(finished.out / "report.html"),
        "figures": str(finished.out / "figures"),
        "verdicts": list(report.verdicts(finished)),
    }


def table_of(done, title):
    from nextlong.replicate import report

    return next(table for table in report.all_tables(done) if table.title == title)


def test_scores_are_means_with_their_deviation_over_seeds(done, measured):
    table = table_of(done, "Methods: scores")
    assert table.columns == ("Value chosen", "Gain, hard negatives", "Loss, hard negatives")
    cells = dict(table.rows)
    assert cells["nextlong"][0] == (41.0, 1.0)
    assert cells["not extended"][0] == (10.0, 1.0)
    assert "over 3 seeds; means over 512, 1K tokens" in table.about


def test_nextlong_is_compared_with_each_other_seed_by_seed_beside_the_papers_numbers(done, measured):
    table = table_of(done, "Methods: nextlong against the others")
    cells = dict(table.rows)
    assert list(cells) == ["nextlong − not extended", "nextlong − standard", "nextlong − knn"]
    assert cells["nextlong − standard"][0] == (20.0, 0.0)
    assert cells["nextlong − standard"][3] == pytest.approx(62.58 - 52.85)
    assert cells["nextlong − not extended"][3] == pytest.approx(62.58 - 13.37)
    assert table.columns[-3:] == ("Paper: Avg.", "Paper: Recall", "Paper: RULER")
    theirs = table_of(done, "Methods: the paper's numbers")
    assert dict(theirs.rows)["quest"][0] == 55.25


def test_numbers_by_length_and_by_distance_stand_in_their_order(done, measured):
    by_length = table_of(done, "Methods: Value chosen by length")
    assert by_length.columns == ("512", "1K")
    assert [cell.mean for cell in dict(by_length.rows)["standard"]] == [21.0, 22.0]
    by_distance = table_of(done, "Methods: gain by distance, top negatives")
    assert by_distance.columns == ("0 to 256", "256 to 512")
    assert dict(by_distance.rows)["nextlong"][1].mean == pytest.approx(0.41)


def test_a_method_that_gave_fewer_sequences_has_them_read_more_often(done, measured):
    cells = dict(table_of(done, "Methods: data").rows)
    trained = done.recipe.extend.trained_tokens
    assert cells["standard"][:3] == ("250", trained / (250 * 1024), 0.5)
    assert cells["nextlong"][1] == trained / (500 * 1024)
    assert "not extended" not in cells


def test_the_verdict_names_who_is_ahead_and_counts_what_chance_may_have_done(done, measured):
    from nextlong.replicate import report

    (said,) = report.verdicts(done)
    assert said.startswith("Methods: nextlong is ahead of standard (Value chosen), standard (Gain, hard negatives)")
    assert "standard (Loss, hard negatives)" in said  # of a loss, less is better
    assert "behind" not in said
    assert "3 of 6 comparisons show no difference beyond chance" in said
    measured[2] = row("knn", 80.0, 81.0, 82.0, arm="knn")
    (said,) = report.verdicts(done)
    assert "nextlong is behind knn (Value chosen), knn (Gain, hard negatives), knn (Loss, hard negatives)" in said


def test_where_nextlong_is_not_compared_nothing_is_claimed(done, measured):
    from nextlong.replicate import report

    del measured[3]
    assert list(report.verdicts(done)) == []
    assert not [table for table in report.all_tables(done) if "against" in table.title]
