"""The page of a replication in its three forms, from scores that are made up."""

import io
from types import SimpleNamespace

import pytest
from rich.console import Console

from nextlong.replicate.presets import PRESETS
from nextlong.replicate.recipe import Replication

pytestmark = pytest.mark.heavy  # it imports what trains


@pytest.fixture
def finished(done, measured):
    """The same, with what its finished stages recorded."""
    done.models = (SimpleNamespace(stage=SimpleNamespace(record={"tokens": 98_304})),)
    done.documents = SimpleNamespace(record={"documents": {"train": 1234, "held-out": 56}})
    return done


def test_the_page_says_what_was_made_from_what(finished):
    from nextlong.replicate import published, report

    about, without_preset, verdict, attention = report._lead(finished)
    assert "Corpus: 1,234 documents to train on, 56 held out, from made up." in about
    assert "pretrained on 98,304 tokens in rows of 128" in about
    assert "Seeds 0, 1, 2: " in about
    assert "preset" not in about
    assert without_preset.startswith("It was made from a recipe without a preset")
    assert verdict.startswith("Methods: nextlong is ahead of standard")
    assert attention == published.ATTENTION


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
    from nextlong.replicate import report, tables

    assert report.as_json(finished) == {
        "report": str(finished.out / "report.html"),
        "figures": str(finished.out / "figures"),
        "verdicts": list(tables.verdicts(finished)),
    }
