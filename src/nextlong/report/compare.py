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
from nextlong.report.page import cards, cells
from nextlong.runs.run import Run
from nextlong.runs.run import Sequence as RunSequence
from nextlong.runs.statistics.stats import Stats
from nextlong.runs.statistics.tally import Spread
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
    setting = stats.setting
    # Cosines are of chunks, or of whole documents: two scales, which never share a column.
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
    of = cells.Numbers([plain], [""])
    title = f"{counted(stats.sequences, 'sequence')} of {stats.setting.target_tokens:,} tokens in {stats.run}"
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
    for one in stats.corpus.left_out:
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


def _pairs(rows: Iterable[cells.TableRow]) -> list[tuple[str, str]]:
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
    names = cells.short_names(runs)
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
        for name, held in zip(cells.labels(runs), holders, strict=True)
    }
    return before_after.comparison_svg(sequences, source_id=shown, tokens=lengths.pop())


def csv_text(rows: Sequence[Mapping[str, Any]]) -> str:
    """Return rows of the same keys as CSV with a header; None is an empty cell."""
    file = io.StringIO()
    writer = csv.DictWriter(file, list(rows[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return file.getvalue()
