"""Charts: bars, lines and maps as SVG that needs no script and prints.

In:  series of numbers with a name and a colour of the palette. Out: markup of a chart
with its legend, "" if there is nothing to draw. `page.js` adds values on hover and
legend toggles. Why no charting library is used: docs/decisions/0021-charts.md.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Final, Literal, NamedTuple

from markupsafe import Markup

from nextlong.picture import html
from nextlong.picture.pieces import clean, short

# The width of a card on a telephone and in three columns, so that 11 units of text stay
# readable.
_WIDTH: Final = 320.0
_TOP: Final = 6.0
_RIGHT: Final = 14.0
_FOOT: Final = 36.0
_CHAR: Final = 6.1  # width of a character of a label, in these units
_MAX_LABEL_CHARS: Final = 28
_HEIGHT: Final = 170.0
_LABEL_HEIGHT: Final = 18.0  # of the label of the y axis, above the chart
_RADIUS: Final = 3.2
_BAR_GAP: Final = 1.5


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


Ticks = Sequence[tuple[float, str]]  # positions on an axis, and their labels

_RECT: Final = Markup(
    '<rect class="{}" data-series="{}" x="{:.1f}" y="{:.1f}" '
    'width="{:.1f}" height="{:.1f}"><title>{}</title></rect>'
)
_CIRCLE: Final = Markup(
    '<circle class="{}" data-series="{}" cx="{:.1f}" cy="{:.1f}" r="{}">'
    "<title>{}</title></circle>"
)
_LINE: Final = Markup('<path class="line stroke-{}" data-series="{}" d="{}"/>')


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
    """Return horizontal bars: for each name a group with a bar of each series.

    Stacked, each name has one bar. `unit` follows a value.
    """
    # Without a value, there is nothing to draw.
    longest = _longest(series, stacked=stacked)
    if longest <= 0:
        return Markup()
    labels = [short(name, _MAX_LABEL_CHARS) for name in names]
    left = 8 + _CHAR * max(map(len, labels))
    ticks = _nice(0, longest, 4)
    unit_x = (_WIDTH - _RIGHT - left) / ticks[-1]
    # Bars of several series are thinner, so that a chart of six runs is not too tall.
    thick = 26.0
    group_height = thick
    if not stacked:
        thick = max(8.0, 17.0 - 2 * len(series))
        group_height = thick * len(series)
    step = group_height + 6
    top = _top(y_label)

    marks: list[Markup] = []
    # Of each name: the value at which its next bar begins, which grows only if stacked.
    starts = [0.0] * len(names)
    for number, one_series in enumerate(series):
        first_y = top
        if not stacked:
            first_y += number * thick
        for index, value in enumerate(one_series.values):
            name = _bar_name(
                one_series=one_series,
                name=names[index],
                series=series,
                stacked=stacked,
            )
            rectangle = _RECT.format(
                one_series.colour,
                number,
                left + starts[index] * unit_x,
                first_y + index * step,
                value * unit_x,
                thick - _BAR_GAP,
                clean(f"{name}: {form.format(value)}{unit}"),
            )
            marks.append(rectangle)
            if stacked:
                starts[index] += value

    x_ticks = [(left + value * unit_x, f"{value:,g}") for value in ticks]
    y_ticks = []
    for index, text in enumerate(labels):
        y_ticks.append((top + index * step + group_height / 2, text))
    return _drawn(
        series,
        marks,
        x_ticks,
        y_ticks,
        x_label=label,
        y_label=y_label,
        left=left,
        foot=top + step * len(names),
        rules="upright",
    )


def _longest(series: Sequence[Series], *, stacked: bool) -> float:
    """Return the value of the longest bar."""
    values = [one_series.values for one_series in series]
    if stacked:
        lengths = [sum(of_name) for of_name in zip(*values, strict=True)]
    else:
        lengths = [max(of_series, default=0) for of_series in values]
    return max(lengths, default=0)


def _bar_name(
    one_series: Series, name: str, series: Sequence[Series], *, stacked: bool
) -> str:
    """Return what the tooltip of a bar says that it is."""
    is_several = len(series) > 1
    if is_several and name:
        return f"{one_series.name}, {name}"
    return one_series.name if is_several or stacked else name


def lines(
    series: Sequence[Series],
    *,
    x_label: str,
    y_label: str,
    scale: Literal["even", "log"] = "even",
) -> Markup:
    """Return a line for each series; a log x axis has its ticks at the points."""
    points = _points(series)
    if not points:
        return Markup()
    xs = [point.x for point in points]
    ys = [point.y for point in points]
    # The y axis begins at 0 or below, so that the heights of points can be compared.
    lowest = min(0, *ys)
    y_values = _nice(lowest, max(ys), 4)
    if scale == "log":
        x_values = sorted(set(xs))
    else:
        x_values = _nice(min(xs), max(xs), 6)
    bend = math.log if scale == "log" else float
    first = bend(x_values[0])
    x_range = (bend(x_values[-1]) - first) or 1
    y_range = y_values[-1] - y_values[0]
    y_labels = [f"{value:g}" for value in y_values]
    left = 12 + _CHAR * max(map(len, y_labels))
    width = _WIDTH - _RIGHT - left - 6
    foot = _TOP + _LABEL_HEIGHT + _HEIGHT

    def to_x(value: float) -> float:
        return left + 6 + (bend(value) - first) / x_range * width

    def to_y(value: float) -> float:
        return foot - (value - y_values[0]) / y_range * _HEIGHT

    marks: list[Markup] = []
    for number, one_series in enumerate(series):
        corners = [
            f"{to_x(point.x):.1f} {to_y(point.y):.1f}" for point in one_series.points
        ]
        path = "M" + "L".join(corners) if corners else ""
        marks.append(_LINE.format(one_series.colour, number, path))
        marks += _circles(
            one_series=one_series,
            number=number,
            to_x=to_x,
            to_y=to_y,
        )
    return _drawn(
        series,
        marks,
        [(to_x(value), f"{value:,g}") for value in x_values],
        list(zip(map(to_y, y_values), y_labels, strict=True)),
        x_label=x_label,
        y_label=y_label,
        left=left,
        foot=foot,
        rules="level",
    )


def scatter(
    series: Sequence[Series], *, height: float, x_label: str, y_label: str
) -> Markup:
    """Return points without ticks, later series above earlier ones.

    Each axis is stretched to fill the chart.
    """
    points = _points(series)
    if not points:
        return Markup()
    xs = [point.x for point in points]
    ys = [point.y for point in points]
    min_x = min(xs)
    min_y = min(ys)
    # 10 units of margin on each side.
    unit_x = (_WIDTH - 20) / (max(xs) - min_x or 1)
    unit_y = (height - 20 - _LABEL_HEIGHT) / (max(ys) - min_y or 1)

    def to_x(value: float) -> float:
        return 10 + (value - min_x) * unit_x

    def to_y(value: float) -> float:
        return height - 10 - (value - min_y) * unit_y

    marks: list[Markup] = []
    for number, one_series in enumerate(series):
        marks += _circles(
            one_series=one_series,
            number=number,
            to_x=to_x,
            to_y=to_y,
        )
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


def _points(series: Sequence[Series]) -> list[Point]:
    points: list[Point] = []
    for one_series in series:
        points += one_series.points
    return points


def _circles(
    one_series: Series,
    number: int,
    to_x: Callable[[float], float],
    to_y: Callable[[float], float],
) -> list[Markup]:
    circles = []
    for point in one_series.points:
        x = to_x(point.x)
        y = to_y(point.y)
        tip = clean(point.tip)
        circles.append(
            _CIRCLE.format(one_series.colour, number, x, y, point.radius, tip)
        )
    return circles


def _drawn(
    series: Sequence[Series],
    marks: Sequence[Markup],
    x_ticks: Ticks,
    y_ticks: Ticks,
    *,
    left: float,
    foot: float,
    rules: Literal["upright", "level", "none"],
    x_label: str,
    y_label: str,
) -> Markup:
    """Return a chart with its axes, and with a legend of several series."""
    keys = []
    if len(series) > 1:
        keys = [(one_series.name, one_series.colour) for one_series in series]
    size = (_WIDTH, foot + (_FOOT if x_label else 0))
    top = _top(y_label)
    box = (left, top, _WIDTH - _RIGHT, foot)
    draw = html.macro("picture/charts.html", "chart")
    return draw(
        keys,
        Markup("").join(marks),
        _apart(x_ticks),
        y_ticks,
        size,
        box,
        rules,
        x_label,
        y_label,
    )


def _top(y_label: str) -> float:
    return _TOP + _LABEL_HEIGHT if y_label else _TOP


def _apart(ticks: Ticks) -> Ticks:
    """Return the ticks of the x axis whose labels do not touch the one before."""
    shown = []
    end = -math.inf
    for position, label in ticks:
        half = len(label) * _CHAR / 2
        if position - half > end:
            shown.append((position, label))
            # 3 units between two labels.
            end = position + half + 3
    return shown


def _nice(low: float, high: float, steps: int) -> list[float]:
    """Return about `steps` round numbers that cover the range from `low` to `high`."""
    span = (high - low) or abs(high) or 1
    rough = span / steps
    unit = 10.0 ** math.floor(math.log10(rough))
    # Steps that can be added up at a glance.
    candidates = (factor * unit for factor in (1, 2, 2.5, 5, 10))
    step = next(size for size in candidates if size >= rough * 0.999)
    # Rounding errors of the division must not add a tick at either end.
    first = math.floor(low / step + 1e-9)
    last = max(math.ceil(high / step - 1e-9), first + 1)
    return [round(number * step, 10) for number in range(first, last + 1)]
