"""Figures: the charts of the report, drawn from the same numbers as its tables.

In:  `Stats.as_json()` of one or several runs, and a name a run. Out: markup; "" where there is nothing to draw.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from markupsafe import Markup

from nextlong.picture import charts
from nextlong.picture.charts import Point, Series
from nextlong.report.page.numbers import source_names, spoken_bin, step_title
from nextlong.report.page.words import Plain, is_extended

_MAX_SOURCES: Final = 12
_LEAST_SHARE: Final = 0.01  # of the seconds of a run, of a step that is drawn
_ROLES: Final = {  # name and colour, as in the strip
    "meta": ("meta-document", "own"),
    "negative": ("negatives", "negative"),
    "document": ("documents", "plain1"),
    "separator": ("separators and special tokens", "between"),
}


def by_rank(plain: Plain, names: Sequence[str]) -> Markup:
    """Draw the mean cosine at each rank (the paper's figure on choosing negatives), above that of random pairs."""
    lines = [
        [
            Point(one["rank"], one["mean"], f"{name}rank {one['rank']:,}: {one['mean']:.4f} (n = {one['count']:,})")
            for one in stats["similarity_by_rank"]
        ]
        for name, stats in _prefixed(plain, names)
    ]
    series = _series(names if len(names) > 1 else ["negatives" if is_extended(plain) else "documents"], lines)
    ranks = [point.x for line in lines for point in line]
    means = dict.fromkeys(stats["random_similarity"]["mean"] for stats in plain if stats["random_similarity"])
    series += [
        Series(
            "random pairs of chunks",
            "plain1",
            points=[Point(rank, mean, f"random pairs of chunks: {mean:.4f}") for rank in (min(ranks), max(ranks))],
        )
        for mean in means
        if ranks
    ]
    return charts.lines(series, x_label="rank", y_label="mean cosine", scale="log")


def by_source(plain: Plain, names: Sequence[str]) -> Markup:
    """Draw the mean cosine of each source; nothing where no run has several."""
    held = [stats["similarity_by_source"] for stats in plain]
    if max(map(len, held)) < 2:
        return Markup()
    shown = [name for name in source_names(plain) if any(name in of_run for of_run in held)][:_MAX_SOURCES]
    rows = [[max(0.0, of_run[name]["mean"]) if name in of_run else 0.0 for name in shown] for of_run in held]
    return _bars(names, shown, rows, label="mean cosine", unit="", form="{:.4f}")


def similarity(plain: Plain, names: Sequence[str]) -> Markup:
    """Draw how the cosines are distributed."""
    lines = []
    for name, stats in _prefixed(plain, names):
        bins = stats["similarity_histogram"]
        total = max(1, sum(one["count"] for one in bins))
        lines.append(
            [
                Point(
                    one["least"] + 0.025,
                    100 * one["count"] / total,
                    f"{name}{one['least']:.2f} to {one['least'] + 0.05:.2f}: {one['count']:,}",
                )
                for one in bins
            ]
        )
    what = "negatives" if is_extended(plain) else "documents"
    return charts.lines(_series(names, lines), x_label="cosine, in steps of 0.05", y_label=f"percent of the {what}")


def histogram(
    key: str, label: str, *, of: str, within: str = "", counts: str = "count"
) -> Callable[[Plain, Sequence[str]], Markup]:
    """Return what draws a histogram as bars, in percent `of` what it counts, from the part `within` of the statistics."""

    def drawn(plain: Plain, names: Sequence[str]) -> Markup:
        held = [(stats[within] if within else stats)[key] for stats in plain]
        edges = sorted({(one["least"], one["most"]) for bins in held for one in bins})
        rows = []
        for bins in held:
            total = max(1, sum(one[counts] for one in bins))
            share_of = {(one["least"], one["most"]): 100 * one[counts] / total for one in bins}
            rows.append([share_of.get(edge, 0.0) for edge in edges])
        bins = [spoken_bin(*edge) for edge in edges]
        return _bars(names, bins, rows, label=f"percent of the {of}", y_label=label, unit=" %", form="{:.1f}")

    return drawn


def exposure(plain: Plain, names: Sequence[str]) -> Markup:
    """Draw the effective left context of the predicted tokens; of several attention masks the first, the recipe's own."""
    return histogram("histogram", "tokens that it can attend to", of="predicted tokens", within="first_exposure")(
        [{"first_exposure": stats["exposure"][0] if stats["exposure"] else {"histogram": []}} for stats in plain], names
    )


def sources(plain: Plain, names: Sequence[str]) -> Markup:
    """Draw which sources the tokens come from, beside their shares of a common corpus; nothing if one run has one source."""
    shown = source_names(plain)[:_MAX_SOURCES]
    if len(shown) == len(plain) == 1:
        return Markup()
    rows = [_percent(stats["tokens_by_source"], shown) for stats in plain]
    labels = names if len(plain) > 1 else ["tokens of the sequences"]
    series = [Series(name, f"run{number}", row) for number, (name, row) in enumerate(zip(labels, rows, strict=True))]
    if all(stats["corpus_by_source"] == plain[0]["corpus_by_source"] for stats in plain):
        series.append(Series("characters of the corpus", "plain1", _percent(plain[0]["corpus_by_source"], shown)))
    return charts.bars(shown, series, label="percent", unit=" %", form="{:.1f}")


def _percent(counts: Mapping[str, int], names: Sequence[str]) -> list[float]:
    total = max(1, sum(counts.values()))
    return [100 * counts.get(name, 0) / total for name in names]


def roles(plain: Plain, names: Sequence[str]) -> Markup:
    """Draw what the tokens are, in the strip's colours."""
    held = dict.fromkeys(role for stats in plain for role in stats["tokens_by_role"])
    groups: dict[str, list[float]] = {}
    for role in held:
        name = role if role in _ROLES else "separator"
        shares = [100 * stats["tokens_by_role"].get(role, 0) / max(1, stats["tokens"]) for stats in plain]
        groups[name] = [a + b for a, b in zip(groups.get(name, [0.0] * len(shares)), shares, strict=True)]
    series = [Series(*_ROLES[role], values) for role, values in groups.items()]
    return charts.bars(_one_name(names), series, label="percent of the tokens", unit=" %", form="{:.2f}", stacked=True)


def outcome(plain: Plain, names: Sequence[str]) -> Markup:
    """Draw what became of the drafts."""
    yields = [stats["yields"] for stats in plain]
    parts = {
        ("kept", "run0"): [of["kept"] for of in yields],
        ("spare", "plain0"): [of["spare"] + of["untried"] for of in yields],
        ("dropped", "run1"): [sum(of["dropped"].values()) for of in yields],
    }
    series = [Series(*named, values) for named, values in parts.items() if any(values)]
    return charts.bars(_one_name(names), series, label="drafts of a sequence", stacked=True)


def seconds(plain: Plain, names: Sequence[str]) -> Markup:
    """Draw the seconds of the steps that take at least 1 % of the time of a run."""
    held = [{step["step"]: step["seconds"] or 0.0 for step in stats["steps"]} for stats in plain]
    steps = list(
        dict.fromkeys(
            name for of_run in held for name, taken in of_run.items() if taken >= _LEAST_SHARE * sum(of_run.values())
        )
    )
    rows = [[of_run.get(name, 0.0) for name in steps] for of_run in held]
    return _bars(
        names, [step_title(name, short=True) for name in steps], rows, label="seconds", unit=" s", form="{:,.1f}"
    )


def _bars(
    names: Sequence[str],
    groups: Sequence[str],
    rows: Sequence[Sequence[float]],
    *,
    label: str,
    unit: str,
    form: str,
    y_label: str = "",
) -> Markup:
    series = [Series(name, f"run{number}", row) for number, (name, row) in enumerate(zip(names, rows, strict=True))]
    return charts.bars(groups, series, label=label, y_label=y_label, unit=unit, form=form)


def _series(names: Sequence[str], lines: Sequence[Sequence[Point]]) -> list[Series]:
    return [
        Series(name, f"run{number}", points=points)
        for number, (name, points) in enumerate(zip(names, lines, strict=True))
    ]


def _prefixed(plain: Plain, names: Sequence[str]) -> list[tuple[str, Mapping[str, Any]]]:
    """Return each run with what its tooltips begin with: its name, where there are several."""
    return [(f"{name}, " if len(names) > 1 else "", stats) for name, stats in zip(names, plain, strict=True)]


def _one_name(names: Sequence[str]) -> list[str]:
    return [""] if len(names) == 1 else list(names)
