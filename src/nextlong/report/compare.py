"""Compare: print the statistics of one data set, or of several side by side, also as CSV."""

from __future__ import annotations

import csv
import io
import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from rich.console import Console

from nextlong.errors import RunError
from nextlong.picture import before_after
from nextlong.report import tables
from nextlong.report.page import cards, words
from nextlong.runs.run import Run
from nextlong.runs.run import Sequence as RunSequence
from nextlong.runs.spans import Spread
from nextlong.runs.stats import Stats
from nextlong.schemas import Layout
from nextlong.text import Json, counted

_NONE = "–"
_WITH_BINS = (
    "exposure",
    "reuse",
)  # cards of which a terminal has room for the histogram, too
_RANKS = (1, 2, 5, 10, 20, 50, 100, 200)
_DECIMALS = (
    (100, 0),
    (10, 1),
)  # of a table, from this value on, else 3; CSV and JSON hold every digit


def row(stats: Stats) -> Json:
    """Return one data set as a flat row; all have the same keys, None where a key does not apply."""
    numbers, by_rank = (
        vars(stats),
        {one.rank: one.mean for one in stats.similarity_by_rank},
    )
    # Cosines are of chunks, or of whole documents: two scales, which never share a column.
    is_extended = stats.layout == Layout.EXTENDED
    cosines, of_documents = (
        (stats.similarity, None) if is_extended else (None, stats.similarity)
    )

    def parts(
        name: str,
        spread: Spread | None,
        keys: Sequence[str] = ("mean", "p10", "p50", "p90"),
    ) -> Json:
        return {f"{name}_{key}": spread and getattr(spread, key) for key in keys}

    return {
        **{
            key: numbers[key]
            for key in (
                "run",
                "method",
                "negatives",
                "position",
                "queries",
                "max_chars",
            )
        },
        **{key: numbers[key] for key in ("target_tokens", "sequences", "tokens")},
        "eligible": stats.yields.eligible,
        "drawn": stats.yields.drawn,
        "dropped": sum(stats.yields.dropped.values()),
        **parts("cosine", cosines),
        **{
            f"cosine_rank_{rank}": by_rank.get(rank) if is_extended else None
            for rank in _RANKS
        },
        **parts("document_cosine", of_documents),
        **parts("distance", stats.distance_tokens, ("mean", "p50", "p90", "max")),
        **parts("meta_chunks", stats.meta_chunks, ("mean", "p50")),
        "after_last_share": stats.after_last and stats.after_last.share,
        "short_last_chunks": stats.after_last and stats.after_last.short,
        "distinct_documents": stats.distinct_documents,
        "documents_per_sequence": stats.documents_per_sequence
        and stats.documents_per_sequence.mean,
        "distinct_chunks": stats.reuse.distinct_chunks,
        "reuse_mean": stats.reuse.mean,
        "reuse_max": stats.reuse.max,
        **{
            key: numbers[key]
            for key in ("near_duplicates", "own_document_negatives", "repeated_chunks")
        },
        **{key: numbers[key] for key in ("meta_share", "chars_per_token")},
    }


def show(compared: Sequence[Stats], console: Console) -> None:
    """Print one column per data set and one line per value; values that are the same in all come first, once."""
    rows = [row(stats) for stats in compared]
    keys = list(rows[0])[1:]
    shown = set(show_same(rows, keys, console))
    headings = _headings([str(row["run"]) for row in rows])
    # Keys whose values the headings hold; a swept key may only share its name with one.
    for key, *values in zip(
        *(heading.split("\n") for heading in headings), strict=False
    ):
        if values == [_NONE if row.get(key) is None else str(row[key]) for row in rows]:
            shown.add(key)
    lines = [
        [key.replace("_", " "), *(text_of(row[key]) for row in rows)]
        for key in keys
        if key not in shown and any(row[key] is not None for row in rows)
    ]
    if lines:
        tables.show_in_blocks(headings, lines, console, names=1)
    else:
        tables.say("all compared values are the same", console)


def show_one(stats: Stats, console: Console) -> None:
    """Print one data set."""
    plain = stats.as_json()
    of = words.Numbers([plain], [""])
    title = f"{counted(stats.sequences, 'sequence')} of {stats.target_tokens:,} tokens in {stats.run}"
    tables.show_pairs(title, _pairs(of.settings()), console)
    for card in (
        card
        for section in cards.sections(of).values()
        for card in section
        if card.name != "cost"
    ):
        for table in card.tables:
            rows = (
                row for row in table.rows if not row.is_bin or card.name in _WITH_BINS
            )
            tables.show_pairs(table.caption, _pairs(rows), console)
    left_out = []
    for one in stats.left_out:
        left_out.append(
            ("", f"{counted(one.count, one.unit.removesuffix('s'))}: {one.reason}")
        )
        for example in one.examples:
            head = json.dumps(example.head, ensure_ascii=False) if example.head else ""
            left_out.append(
                (
                    "",
                    f"  {' · '.join(filter(None, (example.source_id, example.note, head)))}",
                )
            )
    warnings = [("only as a control", plain["control"])] if plain["control"] else []
    warnings += [(warned.name, warned.message) for warned in stats.warnings]
    for title, pairs in (
        ("Filtered out of the corpus", left_out),
        ("Data-quality warnings", warnings),
    ):
        if pairs:
            tables.show_pairs(title, pairs, console)


def _pairs(rows: Iterable[words.TableRow]) -> list[tuple[str, str]]:
    return [(row.name, row.cells[0].text) for row in rows]


def show_same(
    rows: Sequence[Mapping[str, Any]], keys: Sequence[str], console: Console
) -> Json:
    """Print above a table which of `keys` have the same value in all of several rows, and return these."""
    first = rows[0] if len(rows) > 1 else {}
    same = {key: first[key] for key in keys if first.get(key) is not None}
    same = {
        key: value
        for key, value in same.items()
        if all(row.get(key) == value for row in rows)
    }
    if same:
        alike = "; ".join(
            f"{key.replace('_', ' ')} {text_of(value)}" for key, value in same.items()
        )
        tables.say(f"the same in all: {alike}\n", console)
    return same


def _headings(runs: Sequence[str]) -> list[str]:
    """Return the heading of the names and of each data set; of variants named by settings only, their keys and their values."""
    names = words.short_names(runs)
    if any("=" not in setting for name in names for setting in name.split(",")):
        return ["", *(",\n".join(name.split(",")) for name in names)]
    settings = [
        dict(setting.split("=", 1) for setting in name.split(",")) for name in names
    ]
    keys = list(dict.fromkeys(key for setting in settings for key in setting))
    return [
        "\n".join(keys),
        *("\n".join(setting.get(key, _NONE) for key in keys) for setting in settings),
    ]


def text_of(value: str | float | None) -> str:
    """Return a value as a cell of a table shows it."""
    if value is None:
        return _NONE
    if isinstance(value, float):
        decimals = next(
            (places for least, places in _DECIMALS if abs(value) >= least), 3
        )
        return f"{value:,.{decimals}f}"
    return (
        f"{value:,}"
        if isinstance(value, int)
        else " ".join(tables.visible(value).split())
    )


def svg(runs: Sequence[Run]) -> str:
    """Return a picture of one document as each run lays it out.

    A document of many chunks that every run holds whole is preferred. Raises RunError if no document is in all runs, or their
    lengths differ.
    """
    if len(lengths := {run.recipe.compose.target_tokens for run in runs}) > 1:
        differing = ", ".join(map(str, sorted(lengths)))
        raise RunError(
            f"the runs have sequences of different lengths ({differing} tokens); choose runs of one length"
        )
    # Of each run, by document: the first sequence that holds it whole, or is made of its meta-chunks, and how many chunks.
    holders: list[dict[str, tuple[RunSequence, int]]] = [{} for _ in runs]
    for run, holder in zip(runs, holders, strict=True):
        for sequence in run.sequences():
            own = (span for span in sequence.spans if span.role in ("meta", "document"))
            chunks = dict.fromkeys((span.source_id, span.chunk_id) for span in own)
            for source_id, count in Counter(
                source_id for source_id, _ in chunks
            ).items():
                holder.setdefault(source_id, (sequence, count))
    common = [
        source_id
        for source_id in holders[0]
        if all(source_id in held for held in holders[1:])
    ]
    if not common:
        raise RunError(
            "no document is in a sequence of every run; raise compose.sequences, or choose other runs"
        )
    shown = max(
        common, key=lambda source_id: min(held[source_id][1] for held in holders)
    )
    sequences = {
        name: held[shown][0].spans
        for name, held in zip(words.labels(runs), holders, strict=True)
    }
    return before_after.comparison_svg(sequences, source_id=shown, tokens=lengths.pop())


def csv_text(rows: Sequence[Mapping[str, Any]]) -> str:
    """Return rows of the same keys as CSV with a header; None is an empty cell."""
    file = io.StringIO()
    writer = csv.DictWriter(file, list(rows[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return file.getvalue()
