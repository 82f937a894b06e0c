"""Peek: the sequences of a run as a list; or one as a strip, its spans, or its text.

Without a terminal the same as plain text, one record per line; or as plain dictionaries
(docs/reference/json.md names every key).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from itertools import islice
from math import isfinite
from typing import Final, Literal, NamedTuple

from rich.console import Console
from rich.text import Text

from nextlong.methods.base import described, method_of
from nextlong.report import tables
from nextlong.runs.run import Run, Sequence
from nextlong.schemas import Layout, Span
from nextlong.text import Json, counted


class _Role(NamedTuple):
    """How the spans of a role are shown; marks are distinct without colour, too."""

    name: str
    mark: str
    colour: str
    text_style: str


# The roles with a cosine.
_SCORED: Final = ("negative", "context")
# By importance: a cell of the strip is that of the first role in it.
_ROLES: Final = {
    "meta": _Role(
        name="meta-chunk",
        mark="█",
        colour="gold3",
        text_style="bold black on gold3",
    ),
    "negative": _Role(
        name="negative",
        mark="░",
        colour="dodger_blue3",
        text_style="white on dodger_blue3",
    ),
    "document": _Role(
        name="document",
        mark="▒",
        colour="dark_green",
        text_style="white on dark_green",
    ),
    "context": _Role(
        name="context",
        mark="▓",
        colour="dark_cyan",
        text_style="white on dark_cyan",
    ),
    "task": _Role(
        name="task",
        mark="▚",
        colour="magenta",
        text_style="white on dark_magenta",
    ),
}
_OTHER: Final = _Role(
    name="",
    mark="·",
    colour="dim",
    text_style="dim",
)

_STRIP_CELLS: Final = 96
_SOURCE_CELLS: Final = 44
_SNIPPET_CHARS: Final = 64
_WIDE_CELLS: Final = 120  # of a terminal
_NARROW_CELLS: Final = 46  # that a narrow one needs beside the document's name

# The columns of the spans of a sequence.
_COLUMNS: Final[dict[str, Literal["left", "right"]]] = {
    "tokens": "right",
    "length": "right",
    "role": "left",
    "cosine": "right",
    "source": "left",
    "characters": "right",
    "metadata": "left",
    "text": "left",
}
# The columns of the sequences of a run, before the name of the document.
_HEADINGS: Final = (
    "#",
    "tokens",
    "chunks",
    "negatives",
    "meta share",
    "cosine",
    "documents",
)


def show_run(run: Run, console: Console, *, first: int = 100) -> None:
    """Print a line for each of the `first` sequences (0: all) as it is read.

    It shows the composition of the sequence and its meta-document.
    """
    count = len(run)
    if first:
        count = min(first, count)
    is_extended = method_of(run.recipe).layout == Layout.EXTENDED
    sequences = counted(len(run), "sequence")
    title = tables.visible(f"{sequences} by {described(run.recipe)} in {run}")
    tables.show_line(Text(title, style="bold"), console)

    # Names of documents need the room of columns that tell the least.
    columns = list(_HEADINGS)
    if _is_narrow(console):
        columns.remove("meta share")
    # Rows are printed as they are read, so widths cannot wait for the widest cell.
    tokens = f"{run.recipe.sequence_tokens:,}"
    widest = {"#": len(str(count)), "tokens": len(tokens)}
    widths = [max(len(name), widest.get(name, 0)) for name in columns]
    lead = "meta-document" if is_extended else "first document"
    heading = tables.line((*columns, lead), widths)
    heading.stylize("bold")
    tables.show_line(heading, console)

    for number, sequence in enumerate(islice(run.sequences(), count)):
        outline = _outline(number, sequence)
        cells = _cells(outline, is_extended=is_extended)
        name = outline["source_id"]
        # An extended sequence that is cut at T may hold no meta-chunk.
        if is_extended and not outline["meta_chunks"]:
            name = ""
        if console.is_terminal:
            gaps = 2 * len(widths)
            name = tables.tail(name, console.width - sum(widths) - gaps)
        row = [cells[column] for column in columns]
        tables.show_line(tables.line((*row, name), widths), console)
    if count < len(run):
        more = Text(f"{len(run) - count:,} more; --first 0 shows all")
        tables.show_line(more, console)


def _is_narrow(console: Console) -> bool:
    return console.is_terminal and console.width < _WIDE_CELLS


def _cells(outline: Json, *, is_extended: bool) -> dict[str, str]:
    """Return the cells of a sequence in the list; "–" is what it cannot have."""
    # Not 0, which would say that it was counted.
    cells = dict.fromkeys(_HEADINGS, "–")
    cells["#"] = str(outline["number"])
    cells["tokens"] = f"{outline['tokens']:,}"
    cells["documents"] = str(outline["documents"])
    if outline["cosine_mean"] is not None:
        cells["cosine"] = f"{outline['cosine_mean']:.3f}"
    if is_extended:
        cells["chunks"] = str(outline["meta_chunks"])
        cells["negatives"] = str(outline["negatives"])
        cells["meta share"] = f"{outline['meta_tokens'] / outline['tokens']:.1%}"
    return cells


def show_sequence(sequence: Sequence, console: Console) -> None:
    """Print one sequence: a strip, then its chunks with position and source."""
    tokens = len(sequence.input_ids)
    console.print(f"[bold]{sequence.id}[/]  {tokens:,} tokens", highlight=False)
    if console.is_terminal:
        _show_strip(sequence, console)
    # Names of documents come before what can be worked out.
    hidden = {"length", "characters"} if _is_narrow(console) else set()
    if not any(span.metadata for span in sequence.spans):
        hidden.add("metadata")
    names = [name for name in _COLUMNS if name not in hidden]
    table = tables.table()
    for name in names:
        justify = _COLUMNS[name]
        table.add_column(
            name,
            justify=justify,
            overflow="ellipsis",
            no_wrap=True,
        )
    for span, text in zip(sequence.spans, sequence.texts, strict=True):
        cells = _span_cells(span, text, console)
        table.add_row(*(cells[name] for name in names))
    # What gives way on a narrow terminal, in this order.
    flexible = [name for name in ("text", "metadata", "source") if name in names]
    columns = [names.index(name) for name in flexible]
    tables.shrink(table, console, columns=columns)
    tables.show(table, console)


def _show_strip(sequence: Sequence, console: Console) -> None:
    """Print the roles along a sequence, and a legend."""
    cells = min(_STRIP_CELLS, console.width)
    cell_tokens = len(sequence.input_ids) / cells
    strip = Text()
    # A cell with any meta-chunk in it is marked and coloured as such.
    for index in range(cells):
        role = _role_between(sequence, index * cell_tokens, (index + 1) * cell_tokens)
        strip.append(role.mark, role.colour)
    console.print(strip)
    present = {span.role for span in sequence.spans}
    legend = []
    for name, role in _ROLES.items():
        if name in present:
            legend.append(Text(f"{role.mark} {role.name}", style=role.colour))
    line = Text("  ").join(legend)
    console.print(line)


def _role_between(sequence: Sequence, first: float, last: float) -> _Role:
    """Return the most important role between two positions."""
    names = set()
    for span in sequence.spans:
        if span.token_start < last and span.token_end > first:
            names.add(span.role)
    roles = (role for name, role in _ROLES.items() if name in names)
    return next(roles, _OTHER)


def _span_cells(span: Span, text: str, console: Console) -> dict[str, str | Text]:
    """Return the cells of a span of a sequence."""
    role: str | Text = span.role
    source = span.source_id
    if console.is_terminal:
        style = _ROLES.get(span.role, _OTHER).text_style
        role = Text(f" {span.role} ", style=style)
        source_cells = min(_SOURCE_CELLS, console.width // 3)
        if _is_narrow(console):
            source_cells = console.width - _NARROW_CELLS
        source = tables.tail(source, source_cells)
    characters = f"{span.char_start:,}–{span.char_end:,}" if span.doc_id >= 0 else ""
    metadata = ", ".join(f"{name}={value}" for name, value in span.metadata.items())
    return {
        "tokens": f"{span.token_start:,}–{span.token_end:,}",
        "length": str(span.token_end - span.token_start),
        "role": role,
        "cosine": f"{span.score:.3f}" if span.role in _SCORED else "",
        "source": tables.cell(source),
        "characters": characters,
        "metadata": tables.cell(metadata),
        "text": tables.cell(text[:_SNIPPET_CHARS]),
    }


def show_text(sequence: Sequence, console: Console) -> None:
    """Print the text of one sequence.

    On a terminal each span is under a line that describes it; a pipe gets the exact
    text.
    """
    if not console.is_terminal:
        console.file.write(sequence.text)
        return
    for span, text in zip(sequence.spans, sequence.texts, strict=True):
        role = _ROLES.get(span.role, _OTHER)
        if role.name:
            cosine = f", cosine {span.score:.3f}" if span.role in _SCORED else ""
            words = tables.visible(span.source_id).split()
            source = " ".join(words)
            tokens = f"tokens {span.token_start:,}–{span.token_end:,}{cosine}"
            title = f"{role.mark} {role.name} of {source}, {tokens}"
            console.print(Text(title, style="bold"), soft_wrap=True)
        shown = tables.visible(text)
        console.print(
            Text(shown, style=role.text_style),
            end="" if shown.endswith("\n") else "\n",
            soft_wrap=True,
        )


def sequences_of(run: Run, *, first: int) -> list[Json]:
    """Return the composition of the `first` sequences (0: all) of a run."""
    sequences = islice(run.sequences(), first or None)
    return [_outline(number, sequence) for number, sequence in enumerate(sequences)]


def _outline(number: int, sequence: Sequence) -> Json:
    """Return the composition of a sequence.

    `source_id` is that of its meta-document, else of its first document.
    """
    meta_spans = list(_with_role(sequence, "meta"))
    negatives = list(_with_role(sequence, "negative"))
    documents = list(_with_role(sequence, "document"))
    owner = next(iter(meta_spans or documents or negatives), None)
    cosine_mean = None
    if negatives:
        cosine_mean = sum(span.score for span in negatives) / len(negatives)
    doc_ids = {span.doc_id for span in sequence.spans if span.doc_id >= 0}
    return {
        "number": number,
        "id": sequence.id,
        "method": sequence.method,
        "tokens": len(sequence.input_ids),
        "meta_chunks": len(meta_spans),
        "negatives": len(negatives),
        "meta_tokens": sum(span.length for span in meta_spans),
        "cosine_mean": cosine_mean,
        "documents": len(doc_ids),
        "source_id": owner and owner.source_id,
    }


def _with_role(sequence: Sequence, role: str) -> Iterator[Span]:
    return (span for span in sequence.spans if span.role == role)


def sequence_of(number: int, sequence: Sequence) -> Json:
    """Return one sequence with its spans and their texts.

    A span without a score has None.
    """
    spans = []
    for span, text in zip(sequence.spans, sequence.texts, strict=True):
        score = span.score if isfinite(span.score) else None
        spans.append(asdict(span) | {"score": score, "text": text})
    return _outline(number, sequence) | {"spans": spans}
