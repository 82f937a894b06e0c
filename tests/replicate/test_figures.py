"""Figures of a replication: which are drawn, and what stands in them."""

import re

import pytest

from scored_rows import row

pytestmark = pytest.mark.heavy  # it imports what trains


def texts(figure):
    return re.findall(r"<text[^>]*>([^<]*)</text>", figure.svg)


def drawn(done):
    from nextlong.replicate import figures

    return {figure.name: figure for figure in figures.all_figures(done)}


def test_only_what_was_measured_is_drawn(done, measured):
    assert list(drawn(done)) == ["methods-score-by-length", "methods-gain-by-distance"]


def test_without_scores_by_length_there_is_no_such_figure(done, monkeypatch):
    from nextlong.replicate import figures

    rows = [row("nextlong", 40.0, 42.0, arm="nextlong")]
    for scores in rows[0].seeds:
        scores.mean.pop("key_values")
    monkeypatch.setattr(figures, "score_rows", lambda done, experiment: rows)
    assert list(drawn(done)) == ["methods-gain-by-distance"]


def test_lines_bear_the_names_of_the_rows(done, measured):
    figures = drawn(done)
    names = {"not extended", "standard", "knn", "nextlong"}
    assert names <= set(texts(figures["methods-score-by-length"]))
    assert {"512", "1K", "Value chosen", "percent"} <= set(texts(figures["methods-score-by-length"]))
    assert {"negatives: top", "negatives: random-corpus"} <= set(texts(figures["methods-gain-by-distance"]))
    assert all(figure.png.startswith(b"\x89PNG") for figure in figures.values())


def test_the_same_scores_give_the_same_bytes(done, measured):
    first, again = drawn(done), drawn(done)
    assert {name: one.svg for name, one in first.items()} == {name: one.svg for name, one in again.items()}


def test_bars_stand_for_what_was_measured_under_the_values_chosen(monkeypatch):
    from nextlong.evaluate.report.figures import drawn as on_a_page
    from nextlong.replicate import figures

    rows = [row("standard", 20.0, 22.0, arm="standard"), row("nextlong", 40.0, 42.0, arm="nextlong")]
    svg, _ = on_a_page(lambda figure: figures._bars_and_line(figure, rows=rows, label="cosine", values=[[0.5], [0.5]]))
    assert {"standard", "nextlong", "0.50", "cosine", "value chosen, percent"} <= set(
        re.findall(r"<text[^>]*>([^<]*)</text>", svg)
    )
    assert on_a_page(lambda figure: figures._bars_and_line(figure, rows=rows, label="", values=[[], []])) is None
