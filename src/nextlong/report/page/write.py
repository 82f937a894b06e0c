"""Write: finished runs as one HTML report that opens from disk, side by side.

In:  runs. Out: the report as text: the decision, one sequence to walk through, charts with their numbers, what was filtered
out. Nothing comes from a network, every text of the corpus is escaped, and the one script is named by its hash in the
report's policy. Every number is one of `nextlong stats --json`.
"""

from __future__ import annotations

import base64
import hashlib
import json
import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import xxhash
from markupsafe import Markup

import nextlong
from nextlong.artifacts import record
from nextlong.engine import store
from nextlong.errors import NextlongError
from nextlong.picture import html, palette
from nextlong.report import summary
from nextlong.report.compare import labels
from nextlong.report.page import examples, figures, numbers, sequences, words
from nextlong.report.page.numbers import TableRow
from nextlong.report.page.words import Plain
from nextlong.runs import stats
from nextlong.runs.run import Run
from nextlong.runs.variants import CURRENT, HEAD_CHARS, SWEEP, VARIANTS_META

_LONGEST_NAME_BYTES: Final = 200  # of the variants in the name of a page; else how many and a hash
_EXAMPLES: Final = 3  # near-duplicates of a run
Figure = Callable[[Plain, Sequence[str]], Markup]


@dataclass(frozen=True)
class Table:
    """Rows under a caption; `heads` names the columns of numbers."""

    caption: str
    heads: Sequence[str]
    rows: Sequence[TableRow]


@dataclass(frozen=True)
class Card:
    """A chart under a heading, how to read it, and its numbers in a table that opens on request."""

    name: str
    heading: str
    chart: Markup
    reading: str
    tables: Sequence[Table]


def leave(runs: Sequence[Run]) -> str:
    """Write the report of some variants of one run directory unless it is there; return what to say about it."""
    shown = runs[: palette.RUNS]
    path = place_of(shown) if len(shown) == 1 else shown[0].path / SWEEP
    is_there = False
    if path.is_file():
        with path.open(encoding="utf-8", errors="replace") as file:
            is_there = identity(shown) in file.read(HEAD_CHARS)
    if not is_there:
        with store.explained(path):
            store.write_text(path, page(shown))
    return str(path) if shown == runs else f"{path} (the first {len(shown)} of {len(runs)})"


def place_of(runs: Sequence[Run]) -> Path:
    """Return where the report of some variants belongs: their run directory, or here where they have none in common."""
    run_dir = runs[0].path
    if any(run.path != run_dir for run in runs):
        return Path("report.html")
    names = [run.variant.name for run in runs]
    if names == [record.current(run_dir)]:
        return run_dir / CURRENT
    joined = "@".join(names)  # which no variant has in its name
    if len(joined.encode()) > _LONGEST_NAME_BYTES:
        joined = f"{len(names)}@variants@{xxhash.xxh3_64_hexdigest(joined.encode())[:8]}"
    return run_dir / f"report-{joined}.html"


def identity(runs: Sequence[Run]) -> str:
    """Return a hash of the data that a report shows and of the version that drew it."""
    made = [
        [run.variant.name, {name: done.manifest["fingerprint"] for name, done in run.steps.items()}] for run in runs
    ]
    text = json.dumps([nextlong.__version__, made, [run.sequences_per_part for run in runs]])
    return hashlib.sha256(text.encode()).hexdigest()


def page(runs: Sequence[Run]) -> str:
    """Return the report of some runs. Raises NextlongError for more runs than there are colours."""
    if len(runs) > palette.RUNS:
        raise NextlongError(
            f"a report shows at most {palette.RUNS} runs side by side, not {len(runs)}; name fewer, or use nextlong compare"
        )
    measured = [stats.measure(run) for run in runs]
    plain = [of_run.as_json() for of_run in measured]
    names = labels(runs) if len(runs) > 1 else ["this run"]
    style, script = html.style(), html.script()
    policy = f"default-src 'none'; style-src {_digest(style)}; script-src {_digest(script)}; base-uri 'none'; form-action 'none'"
    return html.render(
        "report/page/page.html",
        title=words.title(plain),
        policy=policy,
        style=Markup(style),  # our own files, which hold no text of a corpus
        script=Markup(script),
        identity=identity(runs),
        variants_meta=VARIANTS_META,
        variants=" ".join(run.variant.name for run in runs),
        version=nextlong.__version__,
        is_extended=words.is_extended(plain),
        openings=dict.fromkeys(map(words.opening, plain)),
        runs=[_run(run, of_run, name) for run, of_run, name in zip(runs, plain, names, strict=True)],
        first=numbers.first(plain),
        settings=Table("Settings and amounts", names, numbers.settings(plain)),
        shown=sequences.shown(runs, names),
        hardness=_cards(_hardness(plain), plain, names),
        content=_cards(_content(plain), plain, names),
        hubs=[
            Table(f"Most-used chunks{_of(name, plain)}", ["uses"], rows)
            for name, one in zip(names, plain, strict=True)
            if (rows := numbers.hubs(one))
        ],
        removal=_cards(_removal(plain), plain, names),
        costs=_costs(plain, names),
        glossary=words.glossary(plain),
        number=_number,
    )


def _digest(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


def _of(name: str, plain: Plain) -> str:
    return f" of {name}" if len(plain) > 1 else ""


def _number(cell: numbers.Cell) -> dict[str, str]:
    """Return the attributes of a cell: its exact value, and where `nextlong stats --json` has it."""
    return {"value": json.dumps(cell.value), "path": json.dumps(cell.path)}


def _run(run: Run, of_run: Mapping[str, Any], name: str) -> dict[str, Any]:
    """Return what the first section says about a run."""
    verdict = words.verdict(of_run, is_stand_in=run.recipe.tokenizer.train is not None)
    named = shlex.quote(of_run["run"])
    settings = "".join(f" --set {shlex.quote(setting)}" for setting in verdict.settings)
    return {
        "name": name,
        "named": named,
        "facts": words.facts(of_run, run),
        "verdict": verdict,
        "again": f"nextlong run {shlex.quote(str(run.variant.recipe_file))}{settings}" if settings else "",
        "summary": summary.lines(run.recipe, run.steps, folder=run.data),
        "examples": [examples.marked(pair) for pair in examples.near_duplicate_pairs(run, most=_EXAMPLES)],
    }


def _hardness(plain: Plain) -> list[tuple[str, str, Figure, list[TableRow]]]:
    """Return the charts about similarity and distance: name, heading, what draws it, its numbers."""
    is_extended = words.is_extended(plain)
    compared = "; ".join(dict.fromkeys(words.compared(stats) for stats in plain if stats["scores"]))
    part = "chunk" if is_extended else "part"
    return [
        (
            "rank",
            f"Mean cosine by rank: {compared}",
            figures.by_rank,
            [*numbers.by_rank(plain), *numbers.random_pairs(plain)],
        ),
        (
            "similarity",
            f"Distribution of the cosine: {compared}",
            figures.similarity,
            [
                *numbers.spread(plain, "similarity", "{:.4f}"),
                *numbers.bins(plain, "similarity_histogram", form="from {}"),
            ],
        ),
        (
            "source-cosine",
            f"Mean cosine by source of the {'meta-document' if is_extended else 'document'}",
            figures.by_source,
            numbers.by_source(plain),
        ),
        (
            "distance",
            f"Tokens from a {part} to the next {part} of its document",
            figures.histogram("distance_histogram", "tokens in between", of="distances"),
            [
                *numbers.spread(plain, "distance_tokens", "{:,.0f}"),
                *numbers.bins(plain, "distance_histogram", form="{} tokens"),
            ],
        ),
        (
            "exposure",
            "Effective left context of a predicted token",
            figures.exposure,
            numbers.bins(plain, "exposure", 0, "histogram", form="{} tokens before"),
        ),
    ]


def _content(plain: Plain) -> list[tuple[str, str, Figure, list[TableRow]]]:
    """Return the charts about what the tokens are."""
    return [
        ("sources", "Sources of the sequences and of the corpus", figures.sources, numbers.sources(plain)),
        ("roles", "Tokens by role", figures.roles, numbers.roles(plain)),
        (
            "reuse",
            f"How often a chunk is used{' as a negative' if words.is_extended(plain) else ''}",
            figures.histogram("histogram", "uses of a chunk", of="chunks used", within="reuse", counts="chunks"),
            numbers.reuse(plain),
        ),
        (
            "chunks",
            "Length of the chunks, in tokens",
            figures.histogram("chunk_tokens_histogram", "tokens of a chunk", of="chunks"),
            [
                *numbers.spread(plain, "chunk_tokens", "{:,.0f}"),
                *numbers.bins(plain, "chunk_tokens_histogram", form="{} tokens"),
            ],
        ),
        (
            "documents",
            "Length of the corpus's documents, in characters",
            figures.histogram("document_chars_histogram", "characters of a document", of="documents"),
            [
                *numbers.spread(plain, "document_chars", "{:,.0f}"),
                *numbers.bins(plain, "document_chars_histogram", form="{} characters"),
                *numbers.spread(plain, "documents_per_sequence", "{:,.1f}", of="documents per sequence: "),
            ],
        ),
    ]


def _removal(plain: Plain) -> list[tuple[str, str, Figure, list[TableRow]]]:
    """Return what became of the drafts and what was filtered out."""
    return [
        ("yield", "From documents to sequences", figures.outcome, numbers.yields(plain)),
        ("near", "Near-duplicates and leaks", lambda *_: Markup(), numbers.filtered(plain)),
    ]


def _cards(wanted: Sequence[tuple[str, str, Figure, list[TableRow]]], plain: Plain, names: Sequence[str]) -> list[Card]:
    """Return the cards of the charts that hold a value of at least one run; a mean of one source is that of all."""
    return [
        Card(name, heading, figure(plain, names), words.reading(name, plain, names), [Table(heading, names, rows)])
        for name, heading, figure, rows in wanted
        if any(cell.path for row in rows for cell in row.cells) and (name != "source-cosine" or len(rows) > 2)
    ]


def _costs(plain: Plain, names: Sequence[str]) -> Card:
    heads = ("time", "memory", "disk")
    tables = [
        Table(f"Time, peak memory of one task, and disk space by step{_of(name, plain)}", heads, numbers.costs(one))
        for name, one in zip(names, plain, strict=True)
    ]
    return Card(
        "cost",
        "Time, memory and disk by step",
        figures.seconds(plain, names),
        words.reading("cost", plain, names),
        tables,
    )
