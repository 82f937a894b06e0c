"""Peek: sequences on a terminal, meta-chunks and negatives in two colours.

In:  a finished run. Out: a list of its sequences; or one of them as a strip, a table of its spans, or its text. Without a
terminal the same as plain text, one record a line.
"""

from __future__ import annotations

from itertools import islice

from rich.console import Console
from rich.text import Text

from nextlong.methods.base import described, method_of
from nextlong.report import tables
from nextlong.runs.run import Run, Sequence, Span
from nextlong.schemas import Layout
from nextlong.text import counted

STYLES = {"meta": "bold black on gold3", "negative": "white on dodger_blue3", "document": "white on dark_green"}
_BARS = {"meta": "gold3", "negative": "dodger_blue3", "document": "dark_green"}
_MARKS = {"meta": "█", "negative": "░", "document": "▒"}  # told apart without colour, too
_NAMES = {"meta": "meta-chunk", "negative": "negative", "document": "document"}
_OTHER = "dim"
_STRIP_CELLS = 96
_SOURCE_CELLS = 44
_SNIPPET_CHARS = 64
_WIDE, _NARROW_CELLS = 120, 46  # of a terminal; what a narrow one needs beside the document's name
_HEADINGS = ("#", "tokens", "chunks", "negatives", "meta share", "cosine", "documents")


def show_run(run: Run, console: Console, *, first: int = 100) -> None:
    """Print a line for each of the `first` sequences (0: all), as it is read: what it is made of and what it extends."""
    shown = min(first, len(run)) if first else len(run)
    tokens = f"{run.recipe.sequence_tokens:,}"
    widths = [max(len(heading), len(widest)) for heading, widest in zip(_HEADINGS, (str(shown), tokens), strict=False)]
    widths += [len(heading) for heading in _HEADINGS[2:]]
    title = f"{counted(len(run), 'sequence')} by {described(run.recipe)} in {run}"
    tables.show_line(Text(tables.visible(title), style="bold"), console)
    extends = method_of(run.recipe).layout == Layout.EXTENDED
    last = "meta-document" if extends else "first document"
    shown_columns = [name for name in _HEADINGS if name != "meta share" or not _is_narrow(console)]
    keep = [_HEADINGS.index(name) for name in shown_columns]
    widths = [widths[place] for place in keep]
    heading = tables.line((*shown_columns, last), widths)
    heading.stylize("bold")
    tables.show_line(heading, console)
    for number, sequence in enumerate(islice(run.sequences(), shown)):
        *numbers, name = _row(number, sequence, extends=extends)
        if console.is_terminal:
            name = tables.tail(name, console.width - sum(widths) - 2 * len(widths))
        tables.show_line(tables.line((*(numbers[place] for place in keep), name), widths), console)
    if shown < len(run):
        tables.show_line(Text(f"{len(run) - shown:,} more; --first 0 shows all"), console)


def _is_narrow(console: Console) -> bool:
    """Say whether names of documents need the room of columns that tell the least."""
    return console.is_terminal and console.width < _WIDE


def _row(number: int, sequence: Sequence, *, extends: bool) -> tuple[str, ...]:
    meta_spans, negatives = _of(sequence, "meta"), _of(sequence, "negative")
    share = sum(span.token_end - span.token_start for span in meta_spans) / len(sequence.input_ids)
    mean = sum(span.score for span in negatives) / len(negatives) if negatives else None
    doc_ids = {span.doc_id: span.source_id for span in sequence.spans if span.doc_id >= 0}
    leading = meta_spans[0].source_id if meta_spans else ""  # cut at T, a sequence may hold none
    return (  # what other layouts do not have is not 0
        str(number),
        f"{len(sequence.input_ids):,}",
        str(len(meta_spans)) if extends else "–",
        str(len(negatives)) if extends else "–",
        f"{share:.1%}" if extends else "–",
        "–" if mean is None else f"{mean:.3f}",
        str(len(doc_ids)),
        leading if extends else next(iter(doc_ids.values())),
    )


def show_sequence(sequence: Sequence, console: Console) -> None:
    """Print one sequence: a strip of its tokens, then every chunk with where it stands and where it came from."""
    console.print(f"[bold]{sequence.id}[/]  {len(sequence.input_ids):,} tokens", highlight=False)
    if console.is_terminal:
        console.print(_strip(sequence, min(_STRIP_CELLS, console.width)))
        present = {span.role for span in sequence.spans}
        parts = [Text(f"{_MARKS[role]} {name}", style=_BARS[role]) for role, name in _NAMES.items() if role in present]
        console.print(Text("  ").join(parts))
    table = tables.table()
    is_narrow = _is_narrow(console)  # then names of documents come before what can be worked out
    source_cells = console.width - _NARROW_CELLS if is_narrow else min(_SOURCE_CELLS, console.width // 3)
    for name in ("tokens",) if is_narrow else ("tokens", "length"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("role", no_wrap=True)
    table.add_column("cosine", justify="right", no_wrap=True)
    table.add_column("source", overflow="ellipsis", no_wrap=True)
    if not is_narrow:
        table.add_column("characters", justify="right", no_wrap=True)
    keeps = any(span.metadata for span in sequence.spans)
    if keeps:
        table.add_column("metadata", overflow="ellipsis", no_wrap=True)
    table.add_column("text", overflow="ellipsis", no_wrap=True)
    for span, text in zip(sequence.spans, sequence.texts, strict=True):
        style = STYLES.get(span.role, _OTHER)
        source = tables.tail(span.source_id, source_cells) if console.is_terminal else span.source_id
        kept = [", ".join(f"{name}={value}" for name, value in span.metadata.items())] if keeps else []
        table.add_row(
            f"{span.token_start:,}–{span.token_end:,}",
            *([] if is_narrow else [str(span.token_end - span.token_start)]),
            Text(f" {span.role} ", style=style) if console.is_terminal else span.role,
            f"{span.score:.3f}" if span.role == "negative" else "",
            tables.cell(source),
            *([] if is_narrow else [f"{span.char_start:,}–{span.char_end:,}" if span.doc_id >= 0 else ""]),
            *map(tables.cell, kept),
            tables.cell(text[:_SNIPPET_CHARS]),
        )
    places = {str(column.header): place for place, column in enumerate(table.columns)}
    tables.shrink(table, console, columns=[places[name] for name in ("text", "metadata", "source") if name in places])
    tables.show(table, console)


def show_text(sequence: Sequence, console: Console) -> None:
    """Print the text of one sequence: on a terminal each part under a line that says what it is, elsewhere to the character."""
    if not console.is_terminal:
        console.file.write(sequence.text)
        return
    for span, text in zip(sequence.spans, sequence.texts, strict=True):
        style = STYLES.get(span.role, _OTHER)
        if span.role in _MARKS:
            cosine = f", cosine {span.score:.3f}" if span.role == "negative" else ""
            source = " ".join(tables.visible(span.source_id).split())
            tokens = f"tokens {span.token_start:,}–{span.token_end:,}{cosine}"
            said = f"{_MARKS[span.role]} {_NAMES[span.role]} of {source}, {tokens}"
            console.print(Text(said, style="bold"), soft_wrap=True)
        shown = tables.visible(text)
        console.print(Text(shown, style=style), end="" if shown.endswith("\n") else "\n", soft_wrap=True)


def _of(sequence: Sequence, role: str) -> list[Span]:
    return [span for span in sequence.spans if span.role == role]


def _strip(sequence: Sequence, cells: int) -> Text:
    """Draw the tokens as one line of so many cells; a cell with any meta-chunk in it is marked and coloured as one."""
    cell_tokens = len(sequence.input_ids) / cells
    strip = Text()
    for cell in range(cells):
        first, last = cell * cell_tokens, (cell + 1) * cell_tokens
        roles = {span.role for span in sequence.spans if span.token_start < last and span.token_end > first}
        role = next((role for role in _MARKS if role in roles), "")
        strip.append(_MARKS.get(role, "·"), _BARS.get(role, _OTHER))
    return strip
