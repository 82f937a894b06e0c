"""Compare: print the statistics of one data set, or of several side by side."""

from __future__ import annotations

import csv
import io
import json
import shlex
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple

from rich.console import Console

from nextlong.errors import RunError
from nextlong.picture import before_after
from nextlong.report import tables
from nextlong.report.page import cards, cells
from nextlong.runs.run import Run
from nextlong.runs.run import Sequence as RunSequence
from nextlong.runs.statistics.stats import Stats
from nextlong.runs.statistics.tally import Spread
from nextlong.text import Json, counted

_NONE: Final = "–"
# Cards of which a terminal has room for the histogram, too.
_WITH_BINS: Final = ("exposure", "reuse")
_RANKS: Final = (1, 2, 5, 10, 20, 50, 100, 200)
# The numbers of one screen: name, path in the statistics, and form. With a title, its
# last line and a few warnings they fit into 24 lines.
_SCREEN: Final = (
    ("method", "setting.method", "{}"),
    ("negatives", "setting.negatives", "{}"),
    ("queries", "setting.queries", "{}"),
    ("encoder", "setting.encoder", "{}"),
    ("documents in the corpus", "yields.documents", "{:,}"),
    ("documents that can be extended", "yields.eligible", "{:,}"),
    ("documents used", "documents.distinct", "{:,}"),
    ("drafts that were dropped", "yields.dropped", "{:,}"),
    ("tokens in total", "tokens.total", "{:,}"),
    ("tokens of the meta-documents", "tokens.meta_share", "{:.1%}"),
    ("meta-chunks per sequence", "meta_chunks.per_sequence.p50", "{:,.1f} (median)"),
    ("tokens after the last", "meta_chunks.after_last.share", "{:.1%}"),
    ("distance to the next chunk", "distance_tokens.p50", "{:,.0f} tokens (median)"),
    ("cosine", "similarity.cosine.mean", "{:.2f} (mean)"),
    ("cosine of random pairs", "similarity.random.mean", "{:.2f} (mean)"),
    ("uses of a chunk", "chunks.reuse.mean", "{:.1f} (mean), {max} at most"),
    ("near-duplicates filtered out", "near_duplicates.chunks", "{:,}"),
    ("sequences with tasks", "tasks.sequences", "{:,}"),
)


def row(stats: Stats) -> Json:
    """Return one data set as a flat row.

    All rows have the same keys, None where a key does not apply.
    """
    setting = stats.setting
    # Cosines are of chunks, or of whole documents: two scales, which never share a
    # column.
    chunk_cosine = None
    document_cosine = None
    by_rank: dict[int, float] = {}
    if stats.similarity is not None and setting.is_extended:
        chunk_cosine = stats.similarity.cosine
        by_rank = {of_rank.rank: of_rank.mean for of_rank in stats.similarity.by_rank}
    elif stats.similarity is not None:
        document_cosine = stats.similarity.cosine
    chunks_per_sequence = None
    after_last = None
    if stats.meta_chunks is not None:
        chunks_per_sequence = stats.meta_chunks.per_sequence
        after_last = stats.meta_chunks.after_last
    per_sequence = stats.documents.per_sequence
    return {
        "run": stats.run,
        "method": setting.method,
        "negatives": setting.negatives,
        "hard_share": setting.hard_share,
        "position": setting.position,
        "queries": setting.queries,
        "max_chars": setting.max_chars,
        "target_tokens": setting.target_tokens,
        "sequences": stats.sequences,
        "tokens": stats.tokens.total,
        "eligible": stats.yields.eligible,
        "drawn": stats.yields.drawn,
        "dropped": sum(stats.yields.dropped.values()),
        **_parts("cosine", chunk_cosine, ("mean", "p10", "p50", "p90")),
        **{f"cosine_rank_{rank}": by_rank.get(rank) for rank in _RANKS},
        **_parts("document_cosine", document_cosine, ("mean", "p10", "p50", "p90")),
        **_parts("distance", stats.distance_tokens, ("mean", "p50", "p90", "max")),
        **_parts("meta_chunks", chunks_per_sequence, ("mean", "p50")),
        "after_last_share": after_last and after_last.share,
        "short_last_chunks": after_last and after_last.short,
        "distinct_documents": stats.documents.distinct,
        "documents_per_sequence": per_sequence and per_sequence.mean,
        "distinct_chunks": stats.chunks.reuse.distinct_chunks,
        "reuse_mean": stats.chunks.reuse.mean,
        "reuse_max": stats.chunks.reuse.max,
        "near_duplicates": stats.near_duplicates.chunks,
        "own_document_negatives": (
            stats.negatives and stats.negatives.from_own_document
        ),
        "repeated_chunks": stats.chunks.repeated,
        "meta_share": stats.tokens.meta_share,
        "chars_per_token": stats.tokens.chars_per_token,
    }


def _parts(name: str, spread: Spread | None, keys: Sequence[str]) -> Json:
    """Return some numbers of a distribution as columns."""
    return {f"{name}_{key}": spread and getattr(spread, key) for key in keys}


def show(compared: Sequence[Stats], console: Console) -> None:
    """Print one column per data set and one line per value.

    Values that are the same in all come first, once.
    """
    rows = [row(stats) for stats in compared]
    # Without the name of the run, which is the heading of its column.
    keys = list(rows[0])[1:]
    shown = set(show_same(rows, keys, console))
    headings = ["", *cells.short_names([str(row["run"]) for row in rows])]
    lines = []
    for key in keys:
        values = [row[key] for row in rows]
        if key not in shown and any(value is not None for value in values):
            lines.append([_spoken(key), *map(text_of, values)])
    if lines:
        tables.show_in_blocks(
            headings,
            lines,
            console,
            names=1,
        )
    else:
        tables.say("all compared values are the same", console)
    lengths = sorted({stats.setting.target_tokens for stats in compared})
    if len(lengths) > 1:
        listed = " and ".join(f"{length:,}" for length in lengths)
        tables.say(
            f"\nthe lengths are mixed ({listed} tokens): a longer sequence has more "
            "negatives and longer distances, so compare methods at one length",
            console,
        )


def _spoken(key: str) -> str:
    return key.replace("_", " ")


def show_one(stats: Stats, console: Console) -> None:
    """Print all statistics of one data set."""
    numbers = cells.Numbers([stats.as_json()], [""])
    sequences = counted(stats.sequences, "sequence")
    title = f"{sequences} of {stats.setting.target_tokens:,} tokens in {stats.run}"
    settings = _pairs(numbers.settings())
    tables.show_pairs(title, settings, console)
    for section in cards.sections(numbers).values():
        for card in section:
            if card.name != "cost":
                _show_card(card, console)
    left_out = _left_out(stats)
    if left_out:
        tables.show_pairs("Filtered out of the corpus", left_out, console)
    warnings = _warnings(stats)
    if warnings:
        tables.show_pairs("Data-quality warnings", warnings, console)


def show_card(stats: Stats, name: str, console: Console) -> None:
    """Print one card of the statistics of a data set."""
    numbers = cells.Numbers([stats.as_json()], [""])
    for section in cards.sections(numbers).values():
        for card in section:
            if card.name == name:
                _show_card(card, console)


def show_screen(stats: Stats, console: Console) -> None:
    """Print the numbers of one data set that fit on a screen, and its warnings."""
    plain = stats.as_json()
    plain["yields"]["dropped"] = sum(stats.yields.dropped.values())
    numbers = cells.Numbers([plain], [""])
    rows = [
        numbers.row(name, *path.split("."), form=form) for name, path, form in _SCREEN
    ]
    sequences = counted(stats.sequences, "sequence")
    title = f"{sequences} of {stats.setting.target_tokens:,} tokens in {stats.run}"
    tables.show_pairs(title, _pairs(cells.filled(rows)), console)
    warnings = _warnings(stats)
    if warnings:
        tables.show_pairs("Data-quality warnings", warnings, console)
    else:
        tables.say("all data-quality checks passed", console)
    tables.say(f"nextlong stats {shlex.quote(stats.run)} --all prints all", console)


def _warnings(stats: Stats) -> list[tuple[str, str]]:
    warnings = [(warning.name, warning.message) for warning in stats.warnings]
    if stats.control:
        warnings.insert(0, ("only as a control", stats.control))
    return warnings


def _show_card(card: cards.Card, console: Console) -> None:
    has_bins = card.name in _WITH_BINS
    for table in card.tables:
        rows = [row for row in table.rows if has_bins or not row.is_bin]
        tables.show_pairs(table.caption, _pairs(rows), console)


def _left_out(stats: Stats) -> list[tuple[str, str]]:
    """Return what was filtered out of the corpus, each reason with its examples."""
    pairs = []
    for left_out in stats.corpus.left_out:
        unit = left_out.unit.removesuffix("s")
        pairs.append(("", f"{counted(left_out.count, unit)}: {left_out.reason}"))
        for example in left_out.examples:
            head = ""
            if example.head:
                head = json.dumps(example.head, ensure_ascii=False)
            parts = filter(None, (example.source_id, example.note, head))
            pairs.append(("", f"  {' · '.join(parts)}"))
    return pairs


def _pairs(rows: Iterable[cells.TableRow]) -> list[tuple[str, str]]:
    return [(row.name, row.cells[0].text) for row in rows]


def show_same(
    rows: Sequence[Mapping[str, Any]], keys: Sequence[str], console: Console
) -> Json:
    """Print above a table which of `keys` have the same value in all of several rows.

    Return these keys and values.
    """
    same: Json = {}
    if len(rows) > 1:
        for key in keys:
            value = rows[0].get(key)
            if value is not None and all(row.get(key) == value for row in rows):
                same[key] = value
    if same:
        alike = [f"{_spoken(key)} {text_of(value)}" for key, value in same.items()]
        tables.say(f"the same in all: {'; '.join(alike)}\n", console)
    return same


def text_of(value: str | float | None) -> str:
    """Return a value as a cell of a table shows it; CSV and JSON hold every digit."""
    if value is None:
        return _NONE
    if isinstance(value, float):
        if abs(value) >= 100:
            return f"{value:,.0f}"
        return f"{value:,.1f}" if abs(value) >= 10 else f"{value:,.3f}"
    if isinstance(value, int):
        return f"{value:,}"
    words = tables.visible(value).split()
    return " ".join(words)


class _Holder(NamedTuple):
    """The first sequence of a run that holds a document whole, or its meta-chunks."""

    sequence: RunSequence
    chunks: int


def svg(runs: Sequence[Run]) -> str:
    """Return a picture of one document as each run lays it out.

    A document of many chunks that every run holds whole is preferred. Raises RunError
    if no document is in all runs, or their lengths differ.
    """
    lengths = {run.recipe.compose.target_tokens for run in runs}
    if len(lengths) > 1:
        differing = ", ".join(str(length) for length in sorted(lengths))
        raise RunError(
            where="--svg",
            problem=f"the sequences have different lengths ({differing} tokens)",
            fix="choose runs of one length",
        )
    holders = [_holders(run) for run in runs]
    common = [
        source_id
        for source_id in holders[0]
        if all(source_id in of_run for of_run in holders[1:])
    ]
    if not common:
        raise RunError(
            where="--svg",
            problem="no document is in a sequence of every run",
            fix="raise compose.sequences, or choose other runs",
        )

    def fewest_chunks(source_id: str) -> int:
        return min(of_run[source_id].chunks for of_run in holders)

    shown = max(common, key=fewest_chunks)
    sequences = {
        name: of_run[shown].sequence.spans
        for name, of_run in zip(cells.labels(runs), holders, strict=True)
    }
    return before_after.comparison_svg(sequences, source_id=shown, tokens=lengths.pop())


def _holders(run: Run) -> dict[str, _Holder]:
    """Return the first sequence that holds each document."""
    holders: dict[str, _Holder] = {}
    for sequence in run.sequences():
        # A chunk that occurs twice counts once.
        chunks: dict[tuple[str, int], None] = {}
        for span in sequence.spans:
            if span.role in ("meta", "document"):
                chunks[span.source_id, span.chunk_id] = None
        counts = Counter(source_id for source_id, _ in chunks)
        for source_id, count in counts.items():
            holders.setdefault(source_id, _Holder(sequence, count))
    return holders


def csv_text(rows: Sequence[Mapping[str, Any]]) -> str:
    """Return rows of the same keys as CSV with a header; None is an empty cell."""
    file = io.StringIO()
    writer = csv.DictWriter(file, list(rows[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return file.getvalue()
