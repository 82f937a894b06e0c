"""Charts are drawn to scale, say their values, and escape what a corpus names them."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.hand_made_spans import HOSTILE

from nextlong.picture import charts
from nextlong.picture.charts import Point, Series


def widths(chart):
    return [
        float(width)
        for width in re.findall(
            r'<rect class="run\d" data-series="\d" .*? width="([\d.]+)"', chart
        )
    ]


def test_bars_are_as_long_as_their_values():
    chart = charts.bars(
        ["a", "b"],
        [Series("x", "run0", [1, 4]), Series("y", "run1", [2, 3])],
        label="n",
        unit=" %",
    )
    one, four, two, three = widths(chart)
    assert (four / one, two / one, three / one) == pytest.approx((4, 2, 3), rel=0.01)
    assert "<title>y, a: 2 %</title>" in chart
    assert chart.count("<li data-key=") == 2


def test_stacked_bars_follow_each_other():
    chart = charts.bars(
        [""],
        [Series("x", "run0", [30]), Series("y", "run1", [10])],
        label="n",
        stacked=True,
    )
    starts = [float(x) for x in re.findall(r'x="([\d.]+)" y="[\d.]+" width', chart)]
    assert starts[1] == pytest.approx(starts[0] + widths(chart)[0], abs=0.11)


def test_lines_rise_with_their_values_and_log_axes_are_even_in_factors():
    points = [Point(1, 0.2, "a"), Point(10, 0.4, "b"), Point(100, 0.3, "c")]
    chart = charts.lines(
        [Series("x", "run0", points=points)], x_label="x", y_label="y", scale="log"
    )
    places = [
        tuple(map(float, place))
        for place in re.findall(r'cx="([\d.]+)" cy="([\d.]+)"', chart)
    ]
    assert places[1][0] - places[0][0] == pytest.approx(
        places[2][0] - places[1][0], abs=0.11
    )
    assert places[1][1] < places[2][1] < places[0][1]  # y grows downwards


def test_a_map_keeps_its_points_inside():
    points = [Point(x, y, "p") for x, y in [(-5, 2), (3, 1000), (0.5, -7)]]
    chart = charts.scatter(
        [Series("x", "run0", points=points)], height=240, x_label="a", y_label="b"
    )
    assert all(
        0 <= float(place) <= 360 for place in re.findall(r'c[xy]="([\d.-]+)"', chart)
    )


def test_names_of_a_corpus_stay_texts():
    series = [
        Series(HOSTILE, "run0", [1]),
        Series("y", "run1", [1], points=[Point(0, 0, HOSTILE)]),
    ]
    for chart in (
        charts.bars([HOSTILE], series, label="n"),
        charts.scatter(series, height=40, x_label="a", y_label="b"),
    ):
        assert "<script>" not in chart
        assert "\x1b" not in chart


def test_nothing_is_drawn_of_nothing():
    assert charts.bars(["a"], [Series("x", "run0", [0])], label="n") == ""
    assert charts.lines([Series("x", "run0")], x_label="x", y_label="y") == ""
    assert (
        charts.scatter([Series("x", "run0")], height=40, x_label="a", y_label="b") == ""
    )


@given(st.floats(-1e6, 1e6), st.floats(1e-3, 1e6))
def test_round_numbers_reach_around_their_range(least, span):
    ticks = charts._nice(least, least + span, 4)
    assert ticks[0] <= least + 1e-6 * span
    assert ticks[-1] >= least + span - 1e-6 * span
    assert 2 <= len(ticks) <= 8
