"""Card charts: the drawing of each card of the report.

In:  the `Numbers` of one or several runs. Out: markup of a chart, "" if there is
nothing to draw. A run has one colour in all charts.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from markupsafe import Markup

from nextlong.picture import charts
from nextlong.picture.charts import Point, Series
from nextlong.pipeline import STEP_TITLES
from nextlong.report.page.cells import Numbers, RunStats, spoken_bin, value_at

_MAX_SOURCES: Final = 12
_MIN_TIME_SHARE: Final = 0.01  # of a step that is drawn, of the seconds of its run
_COSINE_STEP: Final = 0.05  # of the histogram of cosines

# The name and colour of each role, as in the strip of a sequence.
_ROLES: Final = {
    "meta": ("meta-document", "own"),
    "negative": ("negatives", "negative"),
    "document": ("documents", "plain1"),
    "context": ("contexts", "plain0"),
    "task": ("tasks with known answers", "task"),
    "separator": ("separators and special tokens", "between"),
}


def cosine_by_rank(numbers: Numbers, *, what: str) -> Markup:
    """Draw the mean cosine at each rank above that of random pairs.

    This is the paper's figure on choosing negatives.
    """
    lines = []
    for prefix, stats in _prefixed(numbers):
        points = []
        for entry in value_at(stats, "similarity.by_rank") or ():
            rank = entry["rank"]
            mean = entry["mean"]
            tip = f"{prefix}rank {rank:,}: {mean:.4f} (n = {entry['count']:,})"
            points.append(Point(rank, mean, tip))
        lines.append(points)
    names = numbers.names if len(numbers.names) > 1 else [what]
    series = _series(names, points=lines)
    ranks: list[float] = []
    for line in lines:
        ranks += [point.x for point in line]
    if ranks:
        ends = (min(ranks), max(ranks))
        series += _random_pairs(numbers, ends=ends)
    return charts.lines(
        series,
        x_label="rank",
        y_label="mean cosine",
        scale="log",
    )


def _random_pairs(numbers: Numbers, *, ends: tuple[float, float]) -> list[Series]:
    """Return a level line for each mean cosine of random pairs of chunks."""
    spreads = [value_at(stats, "similarity.random") for stats in numbers]
    means = [spread["mean"] for spread in spreads if spread]
    name = "random pairs of chunks"
    series = []
    for mean in dict.fromkeys(means):
        points = [Point(rank, mean, f"{name}: {mean:.4f}") for rank in ends]
        series.append(Series(name, "plain1", points=points))
    return series


def cosines(numbers: Numbers, *, what: str) -> Markup:
    """Draw the distribution of the cosine."""
    lines = []
    for prefix, stats in _prefixed(numbers):
        histogram = value_at(stats, "similarity.cosine.histogram") or ()
        bins = [(of_bin["low"], of_bin["count"]) for of_bin in histogram]
        total = max(1, sum(count for _, count in bins))
        points = []
        for low, count in bins:
            # A point is in the middle of its bin.
            tip = f"{prefix}{low:.2f} to {low + _COSINE_STEP:.2f}: {count:,}"
            points.append(Point(low + _COSINE_STEP / 2, 100 * count / total, tip))
        lines.append(points)
    series = _series(numbers.names, points=lines)
    return charts.lines(
        series,
        x_label=f"cosine, in steps of {_COSINE_STEP}",
        y_label=f"percent of the {what}",
    )


def cosine_by_source(numbers: Numbers, sources: Sequence[str]) -> Markup:
    """Draw the mean cosine of each source."""
    shown = sources[:_MAX_SOURCES]
    values = []
    for stats in numbers:
        by_source = value_at(stats, "similarity.by_source") or {}
        means = [
            by_source[name]["mean"] if name in by_source else 0.0 for name in shown
        ]
        values.append([max(0.0, mean) for mean in means])
    series = _series(numbers.names, values=values)
    return charts.bars(
        shown,
        series,
        label="mean cosine",
        form="{:.4f}",
    )


def histogram(
    numbers: Numbers, *path: str | int, label: str, counted: str, part: str = "count"
) -> Markup:
    """Draw a histogram as bars, in percent of what it counts."""
    bins = numbers.entries(*path, by=("low", "high"))
    counts_of_bins = []  # of each bin, its count in each run
    for indexes in bins.values():
        cells = numbers.row("", *path, indexes, part).cells
        counts_of_bins.append([cell.value or 0 for cell in cells])
    # Percents, so that runs of different sizes can be compared.
    percents = []
    for counts in zip(*counts_of_bins, strict=True):
        total = max(1, sum(counts))
        percents.append([100 * count / total for count in counts])
    return charts.bars(
        [spoken_bin(*edges) for edges in bins],
        _series(numbers.names, values=percents),
        label=f"percent of the {counted}",
        y_label=label,
        unit=" %",
        form="{:.1f}",
    )


def tokens_by_source(numbers: Numbers, sources: Sequence[str]) -> Markup:
    """Draw the tokens of each source beside its characters in the corpus.

    One source of one run is not drawn.
    """
    shown = sources[:_MAX_SOURCES]
    # A single bar of 100 % says nothing.
    if len(shown) == len(numbers.all_stats) == 1:
        return Markup()

    def percents(counts: Mapping[str, int]) -> list[float]:
        total = max(1, sum(counts.values()))
        return [100 * counts.get(name, 0) / total for name in shown]

    is_several = len(numbers.all_stats) > 1
    names = numbers.names if is_several else ["tokens of the sequences"]
    values = [percents(stats["tokens"]["by_source"]) for stats in numbers]
    series = _series(names, values=values)
    # Runs of the same corpus share its bar.
    corpora = [stats["corpus"]["chars_by_source"] for stats in numbers]
    if all(corpus == corpora[0] for corpus in corpora):
        of_corpus = percents(corpora[0])
        series.append(Series("characters of the corpus", "plain1", of_corpus))
    return charts.bars(
        shown,
        series,
        label="percent",
        unit=" %",
        form="{:.1f}",
    )


def tokens_by_role(numbers: Numbers) -> Markup:
    """Draw the tokens of meta-documents, negatives, documents and what is between."""
    percents: dict[str, list[float]] = {}
    for run, stats in enumerate(numbers):
        total = max(1, stats["tokens"]["total"])
        for role, tokens in stats["tokens"]["by_role"].items():
            no_tokens = [0.0] * len(numbers.all_stats)
            of_runs = percents.setdefault(_shown_role(role), no_tokens)
            of_runs[run] += 100 * tokens / total
    # Of several runs, roles are in the order of the first one that has them.
    shown_roles = [_shown_role(role) for role in roles_of(numbers)]
    order = dict.fromkeys(shown_roles)
    series = [Series(*_ROLES[role], percents[role]) for role in order]
    return charts.bars(
        _groups(numbers),
        series,
        label="percent of the tokens",
        unit=" %",
        form="{:.2f}",
        stacked=True,
    )


def _shown_role(role: str) -> str:
    return role if role in _ROLES else "separator"


def outcomes(numbers: Numbers) -> Markup:
    """Draw what became of the drafts."""
    yields = [stats["yields"] for stats in numbers]
    # Spare sequences and untried drafts were both not needed.
    spare = [of_run["spare"] + of_run["untried"] for of_run in yields]
    dropped = [sum(of_run["dropped"].values()) for of_run in yields]
    series = [
        Series("kept", "run0", [of_run["kept"] for of_run in yields]),
        Series("spare", "plain0", spare),
        Series("dropped", "run1", dropped),
    ]
    return charts.bars(
        _groups(numbers),
        [outcome for outcome in series if any(outcome.values)],
        label="drafts of a sequence",
        stacked=True,
    )


def seconds_by_step(numbers: Numbers) -> Markup:
    """Draw the seconds of the steps that take at least 1 % of the time of a run."""
    seconds_of_runs = []
    shown: dict[str, None] = {}
    for stats in numbers:
        seconds = {step["step"]: step["seconds"] or 0.0 for step in stats["steps"]}
        seconds_of_runs.append(seconds)
        min_seconds = _MIN_TIME_SHARE * sum(seconds.values())
        # A step is drawn if it takes long in one of the runs.
        shown |= {name: None for name, taken in seconds.items() if taken >= min_seconds}
    values = []
    for seconds in seconds_of_runs:
        values.append([seconds.get(name, 0.0) for name in shown])
    series = _series(numbers.names, values=values)
    titles = [STEP_TITLES.get(name, f"write {name}") for name in shown]
    return charts.bars(
        titles,
        series,
        label="seconds",
        unit=" s",
        form="{:,.1f}",
    )


def roles_of(numbers: Numbers) -> list[str]:
    """Return every role of the runs, in the order of their statistics."""
    roles: dict[str, None] = {}
    for stats in numbers:
        roles |= dict.fromkeys(stats["tokens"]["by_role"])
    return list(roles)


def _series(
    names: Sequence[str],
    *,
    values: Sequence[Sequence[float]] = (),
    points: Sequence[Sequence[Point]] = (),
) -> list[Series]:
    """Return a series for each run in its colour, of values or of points."""
    series = []
    for run, name in enumerate(names):
        series.append(
            Series(
                name,
                colour=f"run{run}",
                values=values[run] if values else (),
                # A series has either values or points.
                points=points[run] if points else (),
            )
        )
    return series


def _groups(numbers: Numbers) -> Sequence[str]:
    """Return the labels of the bars of runs: empty for a single run."""
    return numbers.names if len(numbers.names) > 1 else [""]


def _prefixed(numbers: Numbers) -> list[tuple[str, RunStats]]:
    """Return each run with the prefix of its tooltips.

    It is the name of the run if there are several.
    """
    if len(numbers.names) == 1:
        return [("", stats) for stats in numbers]
    prefixes = [f"{name}, " for name in numbers.names]
    return list(zip(prefixes, numbers, strict=True))
