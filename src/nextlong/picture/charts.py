"""Charts: bars, lines and maps as SVG that needs no script and prints; `page.js` adds values on hover and legend toggles.

In:  series of numbers with a name and a colour of the palette. Out: markup of a chart with its legend, "" if there is nothing
to draw. Why no charting library is used: docs/decisions/0021-charts.md.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Literal, NamedTuple

from markupsafe import Markup

from nextlong.picture import html
from nextlong.picture.pieces import clean, short

_WIDTH = 320.0  # the width of a card on a telephone and in three columns, so that 11 units of text stay readable
_TOP, _RIGHT, _FOOT = 6.0, 14.0, 36.0
_CHAR = 6.1  # width of a character of a label, in these units
_LONGEST_LABEL = 28
_HEIGHT = 170.0
_LABEL_HEIGHT = 18.0  # of the label of the y axis, above the chart
_RADIUS = 3.2


class Point(NamedTuple):
    """A point of a line or a map, and its tooltip."""

    x: float
    y: float
    tip: str
    radius: float = _RADIUS


class Series(NamedTuple):
    """Values or points of one name; `colour` is one of the palette's."""

    name: str
    colour: str
    values: Sequence[float] = ()
    points: Sequence[Point] = ()


_Ticks = Sequence[tuple[float, str]]  # places of an axis, and their labels
_RECT = Markup(
    '<rect class="{}" data-series="{}" x="{:.1f}" y="{:.1f}" width="{:.1f}" height="{:.1f}"><title>{}</title></rect>'
)
_CIRCLE = Markup(
    '<circle class="{}" data-series="{}" cx="{:.1f}" cy="{:.1f}" r="{}"><title>{}</title></circle>'
)
_LINE = Markup('<path class="line stroke-{}" data-series="{}" d="{}"/>')


def bars(
    names: Sequence[str],
    series: Sequence[Series],
    *,
    label: str,
    y_label: str = "",
    unit: str = "",
    form: str = "{:,.0f}",
    stacked: bool = False,
) -> Markup:
    """Return horizontal bars: for each name a group with a bar of each series, or one stacked bar; `unit` follows a value."""
    totals = [
        sum(of_name) for of_name in zip(*(one.values for one in series), strict=True)
    ]
    most = max(
        totals if stacked else [value for one in series for value in one.values],
        default=0,
    )
    if most <= 0:
        return Markup()
    labels = [short(name, _LONGEST_LABEL) for name in names]
    left = 8 + _CHAR * max(map(len, labels))
    ticks = _nice(0, most, 4)
    unit_x = (_WIDTH - _RIGHT - left) / ticks[-1]
    thick = 26.0 if stacked else max(8.0, 17.0 - 2 * len(series))
    group = thick if stacked else thick * len(series)
    step = group + 6
    marks: list[Markup] = []
    starts = (
        [0.0] * len(names)
    )  # of each row: the value at which its next bar begins, which grows only if stacked
    top = _TOP + (_LABEL_HEIGHT if y_label else 0)
    for number, one in enumerate(series):
        for row, value in enumerate(one.values):
            y = top + row * step + (0 if stacked else number * thick)
            x = left + starts[row] * unit_x
            of = (
                f"{one.name}, {names[row]}"
                if len(series) > 1 and names[row]
                else one.name
                if stacked
                else names[row]
            )
            tip = f"{of}: {form.format(value)}{unit}"
            marks.append(
                _RECT.format(
                    one.colour, number, x, y, value * unit_x, thick - 1.5, clean(tip)
                )
            )
            starts[row] += value if stacked else 0
    foot = top + step * len(names)
    along = [(left + value * unit_x, f"{value:,g}") for value in ticks]
    up = [(top + row * step + group / 2, text) for row, text in enumerate(labels)]
    return _drawn(
        series,
        marks,
        along,
        up,
        x_label=label,
        y_label=y_label,
        left=left,
        foot=foot,
        rules="upright",
    )


def lines(
    series: Sequence[Series],
    *,
    x_label: str,
    y_label: str,
    scale: Literal["even", "log"] = "even",
) -> Markup:
    """Return a line for each series; a logarithmic x axis has its ticks at the points."""
    points = [point for one in series for point in one.points]
    if not points:
        return Markup()
    ys = _nice(
        min(0, *(point.y for point in points)), max(point.y for point in points), 4
    )
    xs = [point.x for point in points]
    places = sorted(set(xs)) if scale == "log" else _nice(min(xs), max(xs), 6)
    bend = math.log if scale == "log" else float
    first, last = bend(places[0]), bend(places[-1])
    left = 12 + _CHAR * max(len(f"{value:g}") for value in ys)
    foot = _TOP + _LABEL_HEIGHT + _HEIGHT

    def to_x(value: float) -> float:
        return (
            left
            + 6
            + (bend(value) - first)
            / ((last - first) or 1)
            * (_WIDTH - _RIGHT - left - 6)
        )

    def to_y(value: float) -> float:
        return foot - (value - ys[0]) / (ys[-1] - ys[0]) * _HEIGHT

    marks: list[Markup] = []
    for number, one in enumerate(series):
        path = "L".join(
            f"{to_x(point.x):.1f} {to_y(point.y):.1f}" for point in one.points
        )
        marks.append(_LINE.format(one.colour, number, f"M{path}" if path else ""))
        marks += _circles(one, number, to_x, to_y)
    along = [(to_x(value), f"{value:,g}") for value in places]
    up = [(to_y(value), f"{value:g}") for value in ys]
    return _drawn(
        series,
        marks,
        along,
        up,
        x_label=x_label,
        y_label=y_label,
        left=left,
        foot=foot,
        rules="level",
    )


def scatter(
    series: Sequence[Series], *, height: float, x_label: str, y_label: str
) -> Markup:
    """Return points without ticks, later series above earlier ones; each axis is stretched to fill the chart."""
    points = [point for one in series for point in one.points]
    if not points:
        return Markup()
    least = min(point.x for point in points), min(point.y for point in points)
    spread = (
        max(point.x for point in points) - least[0] or 1,
        max(point.y for point in points) - least[1] or 1,
    )
    unit = (_WIDTH - 20) / spread[0], (height - 20 - _LABEL_HEIGHT) / spread[1]
    marks = [
        circle
        for number, one in enumerate(series)
        for circle in _circles(
            one,
            number,
            lambda x: 10 + (x - least[0]) * unit[0],
            lambda y: height - 10 - (y - least[1]) * unit[1],
        )
    ]
    return _drawn(
        series,
        marks,
        [],
        [],
        x_label=x_label,
        y_label=y_label,
        left=0,
        foot=height,
        rules="none",
    )


def _circles(
    one: Series,
    number: int,
    to_x: Callable[[float], float],
    to_y: Callable[[float], float],
) -> list[Markup]:
    points = (
        (to_x(point.x), to_y(point.y), point.radius, clean(point.tip))
        for point in one.points
    )
    return [_CIRCLE.format(one.colour, number, *point) for point in points]


def _drawn(
    series: Sequence[Series],
    marks: Sequence[Markup],
    along: _Ticks,
    up: _Ticks,
    *,
    left: float,
    foot: float,
    rules: Literal["upright", "level", "none"],
    x_label: str,
    y_label: str,
) -> Markup:
    keys = [(one.name, one.colour) for one in series] if len(series) > 1 else []
    size = (_WIDTH, foot + (_FOOT if x_label else 0))
    shown: list[
        tuple[float, str]
    ] = []  # of the x axis: those whose labels do not touch the one before
    end = -math.inf
    for place, label in along:
        half = len(label) * _CHAR / 2
        if place - half > end:
            shown.append((place, label))
            end = place + half + 3
    box = (left, _TOP + (_LABEL_HEIGHT if y_label else 0), _WIDTH - _RIGHT, foot)
    chart = html.macro("picture/charts.html", "chart")
    return chart(
        keys, Markup("").join(marks), shown, up, size, box, rules, x_label, y_label
    )


def _nice(least: float, most: float, steps: int) -> list[float]:
    """Return about `steps` round numbers that cover the range from `least` to `most`."""
    span = (most - least) or abs(most) or 1
    rough = span / steps
    unit = 10.0 ** math.floor(math.log10(rough))
    step = next(
        factor * unit for factor in (1, 2, 2.5, 5, 10) if factor * unit >= rough * 0.999
    )
    # Rounding errors of the division must not add a tick at either end.
    first, last = math.floor(least / step + 1e-9), math.ceil(most / step - 1e-9)
    return [
        round(number * step, 10) for number in range(first, max(last, first + 1) + 1)
    ]
