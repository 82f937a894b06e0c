"""Numbers: the tables of the report; each cell knows its place in `nextlong stats --json`.

In:  `Stats.as_json()` of one or several runs. Out: rows of a name and a cell a run.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from nextlong.pipeline import STEP_TITLES
from nextlong.report.page.words import SETTINGS, Plain, is_extended

Path = tuple[str | int, ...]
_NOTHING = "–"
_SHOWN_SOURCES = 40
_DROPPED_EXAMPLES = 3  # documents, by reason
_SPREAD = {"mean": "mean", "p10": "10th percentile", "p50": "median", "p90": "90th percentile", "max": "maximum"}


@dataclass(frozen=True)
class Cell:
    """A value as the page shows it; `value` is exactly what `path` leads to in the run's numbers."""

    text: str
    value: Any = None
    path: Path = ()


@dataclass(frozen=True)
class TableRow:
    """A name and a cell a run."""

    name: str
    cells: tuple[Cell, ...]


def row(name: str, plain: Plain, path: Path, form: str = "{:,}") -> TableRow:
    """Return one number of every run."""
    return TableRow(name, tuple(_cell(stats, path, form) for stats in plain))


def _cell(plain: Mapping[str, Any], path: Path, form: str) -> Cell:
    value: Any = plain
    for key in path:
        known = value if isinstance(value, Mapping) else range(len(value or ()))
        if key not in known:
            return Cell(_NOTHING)
        value = value[key]
    if value is None:
        return Cell(_NOTHING)
    return Cell(value if isinstance(value, str) else form.format(value), value, path)


def _filled(rows: Iterable[TableRow]) -> list[TableRow]:
    """Return the rows that hold a value of at least one run."""
    return [row for row in rows if any(cell.path for cell in row.cells)]


def first(plain: Plain) -> list[TableRow]:
    """Return the few numbers of the first screen of one run."""
    what = "negatives" if is_extended(plain) else "documents"
    apart = "tokens between chunks that followed each other, median"
    random = plain[0]["random_similarity"]
    of_random = f" (random pairs: {random['mean']:.2f})" if random else ""
    return _filled(
        [
            row("sequences", plain, ("sequences",)),
            row("tokens per sequence", plain, ("target_tokens",)),
            row("tokens in total", plain, ("tokens",)),
            row("documents used", plain, ("distinct_documents",)),
            row(apart, plain, ("distance_tokens", "p50"), "{:,.0f}"),
            row(f"mean cosine of the {what}{of_random}", plain, ("similarity", "mean"), "{:.2f}"),
        ]
    )


def settings(plain: Plain) -> list[TableRow]:
    """Return what distinguishes the runs; words of the recipe are explained."""
    names = {
        "method_name": "method",
        "negatives": "choice of negatives",
        "position": "position of a meta-chunk among its negatives",
        "fit": "how the length is reached",
        "encoder": "encoder",
        "search": "approximate index",
        "queries": "query model",
        "max_chars": "maximum characters per chunk",
        "target_tokens": "tokens per sequence",
        "sequences": "sequences",
        "tokens": "tokens in total",
        "distinct_documents": "documents used",
        "chars_per_token": "characters per token",
    }
    compared = [
        row("mean cosine", plain, ("similarity", "mean"), "{:.4f}"),
        row("tokens between chunks that followed each other, median", plain, ("distance_tokens", "p50"), "{:,.0f}"),
    ]
    shown = []
    for key, name in names.items():
        one = row(name, plain, (key,), "{:.3f}" if key == "chars_per_token" else "{:,}")
        meanings = [SETTINGS.get(key, {}).get(cell.value) for cell in one.cells]
        cells = [
            replace(cell, text=f"{cell.text}: {meaning}") if meaning else cell
            for cell, meaning in zip(one.cells, meanings, strict=True)
        ]
        shown.append(TableRow(name, tuple(cells)))
    return _filled([*shown, *compared])


def yields(plain: Plain) -> list[TableRow]:
    """Return the way from documents to sequences."""
    names = {
        "documents": "documents in the corpus",
        "eligible": "documents that can be extended" if is_extended(plain) else "documents that can be used",
        "asked": "sequences requested",
        "drafts": "drafts of a sequence",
        "kept": "kept",
        "spare": "spare, built",
        "untried": "spare, not built",
    }
    rows = [row(name, plain, ("yields", key)) for key, name in names.items()]
    for reason in dict.fromkeys(reason for stats in plain for reason in stats["yields"]["dropped"]):
        rows.append(row(f"dropped: {reason}", plain, ("yields", "dropped", reason)))
        rows += [
            row("example", plain, ("yields", "dropped_examples", reason, number)) for number in range(_DROPPED_EXAMPLES)
        ]
    return _filled(rows)


def spread(plain: Plain, key: str, form: str, *, of: str = "") -> list[TableRow]:
    """Return a distribution in five numbers; `of` says of what, where the table holds other numbers too."""
    return _filled(row(f"{of}{name}", plain, (key, part), form) for part, name in _SPREAD.items())


def random_pairs(plain: Plain) -> list[TableRow]:
    """Return the cosines of random pairs of chunks in five numbers; one as good as 1 is explained."""
    return [
        TableRow(
            one.name,
            tuple(
                replace(cell, text=f"{cell.text} (the same text twice)") if cell.text == "1.0000" else cell
                for cell in one.cells
            ),
        )
        for one in spread(plain, "random_similarity", "{:.4f}", of="random pairs: ")
    ]


def by_rank(plain: Plain) -> list[TableRow]:
    """Return the mean cosine at each rank and the number of chunks behind it."""
    ranks = sorted({one["rank"] for stats in plain for one in stats["similarity_by_rank"]})
    return [
        found
        for rank in ranks
        for found in (
            _row_where(f"rank {rank:,}", plain, ("similarity_by_rank",), {"rank": rank}, "mean", "{:.4f}"),
            _row_where(f"rank {rank:,}: n", plain, ("similarity_by_rank",), {"rank": rank}, "count", "{:,}"),
        )
    ]


def by_source(plain: Plain) -> list[TableRow]:
    """Return the mean cosine of each source and the number of chunks behind it."""
    names = [name for name in source_names(plain) if any(name in stats["similarity_by_source"] for stats in plain)]
    return [
        found
        for name in names[:_SHOWN_SOURCES]
        for found in (
            row(name, plain, ("similarity_by_source", name, "mean"), "{:.4f}"),
            row(f"{name}: n", plain, ("similarity_by_source", name, "count")),
        )
    ]


def _row_where(name: str, plain: Plain, path: Path, where: Mapping[str, Any], part: str, form: str) -> TableRow:
    """Return one part of the entry of a list, in each run, for which `where` holds."""
    cells = []
    for stats in plain:
        entries: Any = stats
        for key in path:
            entries = entries[key]
        places = [n for n, one in enumerate(entries) if all(one[key] == value for key, value in where.items())]
        cells.append(_cell(stats, (*path, places[0], part), form) if places else Cell(_NOTHING))
    return TableRow(name, tuple(cells))


def bins(plain: Plain, *path: str | int, form: str, part: str = "count") -> list[TableRow]:
    """Return a histogram; `form` makes the name of a row of its bin."""

    def histogram(stats: Mapping[str, Any]) -> Any:
        found: Any = stats
        for key in path:
            found = found[key] if isinstance(found, Mapping) or len(found) > int(key) else ()
        return found

    edges = sorted({(one["least"], one["most"]) for stats in plain for one in histogram(stats)})
    return [
        _row_where(
            form.format(f"{least:.2f}" if isinstance(least, float) and most < 2 else spoken_bin(least, most)),
            plain,
            path,
            {"least": least, "most": most},
            part,
            "{:,}",
        )
        for least, most in edges
    ]


def spoken_bin(least: float, most: float) -> str:
    """Return a bin of whole numbers in words."""
    return f"{least:,.0f}" if least == most else f"{least:,.0f}–{most:,.0f}"


def reuse(plain: Plain) -> list[TableRow]:
    """Return how often a chunk is used."""
    rows = [
        row("distinct chunks", plain, ("reuse", "distinct_chunks")),
        row("uses of a chunk, mean", plain, ("reuse", "mean"), "{:.2f}"),
        row("uses of a chunk, maximum", plain, ("reuse", "max")),
    ]
    return _filled([*rows, *bins(plain, "reuse", "histogram", form="chunks used {}×", part="chunks")])


def hubs(plain: Mapping[str, Any]) -> list[TableRow]:
    """Return the chunks of one run that are used most."""
    return [
        TableRow(
            f"{hub['source_id']} · chunk {hub['ordinal']}", (_cell(plain, ("reuse", "hubs", place, "uses"), "{:,}"),)
        )
        for place, hub in enumerate(plain["reuse"]["hubs"])
    ]


def roles(plain: Plain) -> list[TableRow]:
    """Return what the tokens are."""
    names = dict.fromkeys(role for stats in plain for role in stats["tokens_by_role"])
    counts = [row(f"tokens: {role}", plain, ("tokens_by_role", role)) for role in names]
    return _filled([row("share of the meta-documents", plain, ("meta_share",), "{:.1%}"), *counts])


def source_names(plain: Plain) -> list[str]:
    """Return every source, the one with most tokens first."""
    total: dict[str, int] = {}
    for stats in plain:
        for name, tokens in stats["tokens_by_source"].items():
            total[name] = total.get(name, 0) + tokens
    return sorted(total, key=lambda name: (-total[name], name))


def sources(plain: Plain) -> list[TableRow]:
    """Return the tokens of each source, the largest first, and its characters in the corpus."""
    names = source_names(plain)
    shown = [
        found
        for name in names[:_SHOWN_SOURCES]
        for found in (
            row(f"{name}: tokens", plain, ("tokens_by_source", name)),
            row(f"{name}: characters in the corpus", plain, ("corpus_by_source", name)),
        )
    ]
    if rest := names[_SHOWN_SOURCES:]:
        sums = [sum(stats["tokens_by_source"].get(name, 0) for name in rest) for stats in plain]
        shown.append(TableRow(f"{len(rest):,} more sources together", tuple(Cell(f"{total:,}") for total in sums)))
    return shown


def filtered(plain: Plain) -> list[TableRow]:
    """Return what was filtered out because it repeats something or occurs in an evaluation, and what must be 0."""
    files = dict.fromkeys(file for stats in plain for file in stats["contaminated"] or {})
    keyword_sources = dict.fromkeys(source for stats in plain for source in stats["keywords"] or {})
    return _filled(
        [
            row("near-duplicate negatives", plain, ("near_duplicates",)),
            row("of these, because of a shared 100-word passage", plain, ("repeated_passages",)),
            row("near-duplicate documents, by the method", plain, ("near_duplicate_documents",)),
            *(
                row(f"documents of {source} with keywords", plain, ("keywords", source, "with_keywords"))
                for source in keyword_sources
            ),
            row("documents whose keywords no other document has", plain, ("unshared_keywords",)),
            row("documents split into parts with others in between", plain, ("in_parts", "in_parts")),
            *(row(f"chunks that share text with {file}", plain, ("contaminated", file)) for file in files),
            row("negatives from the sequence's own document (must be 0)", plain, ("own_document_negatives",)),
            row("chunks that occur twice in a sequence (must be 0)", plain, ("repeated_chunks",)),
        ]
    )


def costs(plain: Mapping[str, Any]) -> list[TableRow]:
    """Return seconds, peak memory and disk space of each step of one run, in order."""
    return [
        TableRow(
            step_title(step["step"]),
            (
                _cell(plain, ("steps", place, "seconds"), "{:,.1f} s"),
                _megabytes(plain, ("steps", place, "peak_bytes"), "{:,.0f} MB"),
                _megabytes(plain, ("steps", place, "bytes"), "{:,.1f} MB"),
            ),
        )
        for place, step in enumerate(plain["steps"])
    ]


def step_title(name: str, *, short: bool = False) -> str:
    """Return what a step does, with its name unless that is too much to show."""
    title = STEP_TITLES.get(name, f"write {name}" if short else "write the files")
    return title if short else f"{title} ({name})"


def _megabytes(plain: Mapping[str, Any], path: Path, form: str) -> Cell:
    found = _cell(plain, path, "{}")
    return Cell(form.format(found.value / 1e6), found.value, path) if found.path else found
