"""Pictures: the numbers of runs drawn by matplotlib, as SVG whose text and lines take the page's colour.

In:  `Stats` of one or several runs, each with its letter. Out: SVG; None where there is nothing to draw.
The colours are Okabe and Ito's, told apart by the colour-blind; markers tell lines apart in grey.
"""

from __future__ import annotations

import importlib
import io
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from nextlong.errors import NextlongError
from nextlong.picture.elements import clean
from nextlong.runs.stats import Stats
from nextlong.runs.tally import Bin

Named = Sequence[tuple[str, Stats]]  # a run's letter, and its numbers

_COLOURS: Final = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9")
_MARKERS: Final = "osD^vP"
_INK: Final = "#010203"  # stands for the page's colour until the SVG is written
_LABEL_CHARS: Final = 22
_WIDTH_INCHES: Final = 4.9  # at 72 to the inch nearly a telephone's width, so that 9 points stay 9
MAX_RUNS: Final = len(_COLOURS)
MAX_SOURCES: Final = 12


def draw(paint: Callable[[Any], bool], *, height: float = 2.7) -> str | None:
    """Return what `paint` draws on a figure of so many inches; None if it says that there is nothing."""
    matplotlib, figures = _required("matplotlib"), _required("matplotlib.figure")
    inks = ("text.color", "axes.edgecolor", "axes.labelcolor", "xtick.color", "ytick.color")
    settings = {
        **dict.fromkeys(inks, _INK),
        "svg.hashsalt": "nextlong",  # the same numbers give the same bytes
        "svg.fonttype": "none",
        "text.parse_math": False,  # a source's name may hold a dollar sign
        "font.size": 9,
        "axes.spines.top": False,
        "axes.spines.right": False,
    }
    with matplotlib.rc_context(settings), warnings.catch_warnings():
        # The reader's fonts draw the text; matplotlib only measures it, in one that lacks many scripts.
        warnings.filterwarnings("ignore", message=r"Glyph .* missing from font", category=UserWarning)
        figure = figures.Figure(figsize=(_WIDTH_INCHES, height), layout="constrained", facecolor="none")
        if not paint(figure):
            return None
        for axes in figure.axes:
            axes.set_facecolor("none")
        svg = io.StringIO()
        figure.savefig(svg, format="svg", metadata={"Date": None, "Creator": None})
    return svg.getvalue().replace(_INK, "currentColor")


def _required(name: str) -> Any:
    try:
        return importlib.import_module(name)
    except ImportError:
        raise NextlongError(
            "matplotlib, which draws the pictures, is not installed; say: pip install 'nextlong[report]'"
        ) from None


def outcome(runs: Named) -> str | None:
    """What became of the drafts."""
    parts = {
        "kept": [one.yields.kept for _, one in runs],
        "spare": [one.yields.spare for _, one in runs],
        "untried": [one.yields.untried for _, one in runs],
        "dropped": [sum(one.yields.dropped.values()) for _, one in runs],
    }
    return _stacked(runs, parts, label="drafts of a sequence")


def roles(runs: Named) -> str | None:
    """What the tokens are."""
    names = dict.fromkeys(role for _, one in runs for role in one.tokens_by_role)
    shares = {role: [100 * one.tokens_by_role.get(role, 0) / max(1, one.tokens) for _, one in runs] for role in names}
    return _stacked(runs, shares, label="percent of the tokens")


def _stacked(runs: Named, parts: Mapping[str, Sequence[float]], *, label: str) -> str | None:
    letters = [letter for letter, _ in runs]
    there = {name: values for name, values in parts.items() if any(values)}
    if not there:  # of which matplotlib would warn that its legend is empty
        return None

    def paint(figure: Any) -> bool:
        axes, left = figure.subplots(), [0.0] * len(runs)
        for number, (name, values) in enumerate(there.items()):
            colour = _COLOURS[number % len(_COLOURS)]
            axes.barh(letters, values, left=left, height=0.6, color=colour, edgecolor=_INK, linewidth=0.5, label=name)
            left = [start + value for start, value in zip(left, values, strict=True)]
        axes.invert_yaxis()
        axes.set_xlabel(label)
        figure.legend(loc="outside upper left", ncols=3, frameon=False)
        return True

    return draw(paint, height=1.3 + 0.35 * len(runs))


def similarity_by_rank(runs: Named) -> str | None:
    """The mean cosine at each rank (the paper's figure on choosing negatives)."""
    lines = [[(float(point.rank), point.mean) for point in one.similarity_by_rank] for _, one in runs]

    def paint(figure: Any) -> bool:
        axes = figure.subplots()
        _lines(figure, axes, runs, lines)
        axes.set(xscale="log", xlabel="rank: the place beside what it is compared to", ylabel="mean cosine")
        ticks = sorted({x for points in lines for x, _ in points})
        axes.set_xticks(ticks, [f"{tick:,.0f}" for tick in ticks])
        axes.minorticks_off()
        return any(lines)

    return draw(paint)


def similarity(runs: Named) -> str | None:
    """How the cosines are spread."""
    lines = [_shares(one.similarity_histogram) for _, one in runs]

    def paint(figure: Any) -> bool:
        axes = figure.subplots()
        _lines(figure, axes, runs, [[(one.least + 0.025, share) for one, share in points] for points in lines])
        axes.set(xlabel="cosine, by steps of 0.05", ylabel="percent", ylim=(0, None))
        return any(lines)

    return draw(paint)


def _shares(bins: Sequence[Bin]) -> list[tuple[Bin, float]]:
    total = sum(part.count for part in bins)
    return [(part, 100 * part.count / max(1, total)) for part in bins]


def _lines(figure: Any, axes: Any, runs: Named, lines: Sequence[Sequence[tuple[float, float]]]) -> None:
    for number, ((letter, _), points) in enumerate(zip(runs, lines, strict=True)):
        xs, ys = [x for x, _ in points], [y for _, y in points]
        axes.plot(xs, ys, color=_COLOURS[number], marker=_MARKERS[number], markersize=4, linewidth=1.6, label=letter)
    if len(runs) > 1:
        figure.legend(loc="outside upper left", ncols=MAX_RUNS, frameon=False)


def distances(runs: Named) -> str | None:
    """How far apart neighbouring chunks, or parts, of a document stand."""
    return _binned(runs, [one.distance_histogram for _, one in runs], label="tokens in between")


def chunk_tokens(runs: Named) -> str | None:
    """How long the chunks are."""
    return _binned(runs, [one.chunk_tokens_histogram for _, one in runs], label="tokens of a chunk")


def reuse(runs: Named) -> str | None:
    """How often a chunk serves."""
    bins = [[Bin(part.least, part.most, part.chunks) for part in one.reuse.histogram] for _, one in runs]
    return _binned(runs, bins, label="times that a chunk is used")


def _binned(runs: Named, histograms: Sequence[Sequence[Bin]], *, label: str) -> str | None:
    """Bars of shares, side by side a run; the bins of all runs have the same edges."""
    edges = sorted({(part.least, part.most) for bins in histograms for part in bins})
    shares = [{(part.least, part.most): share for part, share in _shares(bins)} for bins in histograms]
    rows = [[share_of.get(edge, 0.0) for edge in edges] for share_of in shares]
    names = [spoken_bin(*edge) for edge in edges]
    return _bars(runs, names, rows, label="percent", title=label)


def spoken_bin(least: float, most: float) -> str:
    """Return a bin of whole numbers in words."""
    return f"{least:,.0f}" if least == most else f"{least:,.0f}–{most:,.0f}"


def sources(runs: Named) -> str | None:
    """Where the tokens come from."""
    total = [max(1, sum(one.tokens_by_source.values())) for _, one in runs]
    names = source_names(runs)[:MAX_SOURCES]
    rows = [
        [100 * one.tokens_by_source.get(name, 0) / tokens for name in names]
        for (_, one), tokens in zip(runs, total, strict=True)
    ]
    return _bars(runs, [_label(name) for name in names], rows, label="percent of the tokens")


def source_names(runs: Named) -> list[str]:
    """Return every source, the one that gives most tokens first."""
    total: dict[str, int] = {}
    for _, one in runs:
        for name, tokens in one.tokens_by_source.items():
            total[name] = total.get(name, 0) + tokens
    return sorted(total, key=lambda name: (-total[name], name))


def _label(name: str) -> str:
    text = " ".join(clean(name).split())
    return text if len(text) <= _LABEL_CHARS else f"{text[: _LABEL_CHARS - 1]}…"


def chars_per_token(runs: Named) -> str | None:
    """How much text a token holds."""
    return _bars(runs, [""], [[one.chars_per_token or 0.0] for _, one in runs], label="characters in a token")


def near_copies(runs: Named) -> str | None:
    """What was left out because it repeats something."""
    names = {
        "near_copies": "near-copies",
        "repeated_passages": "of them, one passage",
        "near_copy_documents": "documents",
    }
    rows = [[float(getattr(one, key) or 0) for key in names] for _, one in runs]
    return _bars(runs, list(names.values()), rows, label="left out")


def document_chars(runs: Named) -> str | None:
    """How long the documents of the corpus are."""
    return _binned(runs, [one.document_chars_histogram for _, one in runs], label="characters of a document")


def costs(runs: Named, key: str, *, unit: float, label: str) -> str | None:
    """What each step took, in the order of the route; `key` names a part of `StepCost`."""
    taken = [{step.step: (getattr(step, key) or 0) * unit for step in one.steps} for _, one in runs]
    names = list(dict.fromkeys(name for run_costs in taken for name in run_costs))
    return _bars(runs, names, [[run_costs.get(name, 0.0) for name in names] for run_costs in taken], label=label)


def _bars(
    runs: Named, names: Sequence[str], rows: Sequence[Sequence[float]], *, label: str, title: str = ""
) -> str | None:
    """Draw lying bars, a group a name and a bar a run."""

    def paint(figure: Any) -> bool:
        axes, width = figure.subplots(), 0.8 / len(runs)
        for number, ((letter, _), row) in enumerate(zip(runs, rows, strict=True)):
            places = [place + (number - (len(runs) - 1) / 2) * width for place in range(len(names))]
            style = {"color": _COLOURS[number], "edgecolor": _INK, "linewidth": 0.5}
            axes.barh(places, row, width, label=letter, **style)
        axes.set_yticks(range(len(names)), names)
        axes.invert_yaxis()
        axes.set_xlabel(label)
        axes.set_title(title, loc="left", fontsize=9)
        axes.margins(y=0.02)
        if len(runs) > 1:
            figure.legend(loc="outside upper left", ncols=MAX_RUNS, frameon=False)
        return any(any(row) for row in rows)

    return draw(paint, height=0.9 + 0.22 * max(len(names), 2) + 0.1 * len(runs) * len(names))
