"""Tables: the same rows in colour on a terminal and as plain text elsewhere, one record a line.

Text of the user's comes into a cell by `cell`, so that neither its markup nor its control characters reach the terminal.
"""

from __future__ import annotations

from rich.console import Console
from rich.markup import escape
from rich.table import Table

# What moves the cursor or colours the screen; tabs and newlines do no harm.
_CONTROLS = dict.fromkeys(code for code in (*range(32), *range(0x7F, 0xA0)) if chr(code) not in "\t\n")
_PIPE_CELLS = 400  # wide enough that a pipe loses nothing to a narrow terminal that is not there


def table(title: str = "") -> Table:
    """Return an empty table without lines."""
    return Table(title=escape(title) or None, title_justify="left", box=None, header_style="bold", pad_edge=False)


def cell(text: str) -> str:
    """Return text on one line and without effect on the terminal."""
    return escape(" ".join(visible(text).split()))


def visible(text: str) -> str:
    """Return text without control characters other than tab and newline."""
    return text.translate(_CONTROLS)


def show(filled: Table, console: Console) -> None:
    """Print a table, as wide as it needs to be where there is no terminal."""
    if console.is_terminal:
        console.print(filled)
    else:
        Console(file=console.file, width=_PIPE_CELLS, no_color=True, highlight=False).print(filled)
