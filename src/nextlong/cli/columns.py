"""Columns: which of a file's columns holds the text and which the id, told by their names and values.

In:  the columns of some records (`inputs/head.py`). Out: their names, None where there is nothing to go by.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from nextlong.inputs.head import head_columns
from nextlong.inputs.listing import list_files
from nextlong.recipe import Source

# As data sets on the Hugging Face hub call them, the more telling first.
_TEXTS: Final = (
    "text", "content", "contents", "body", "document", "raw_content", "markdown", "article", "full_text", "page_content",
    "maintext", "story", "passage", "transcript", "code", "abstract",
)  # fmt: skip
_IDS: Final = (
    "id", "doc_id", "docid", "document_id", "_id", "uuid", "guid", "warc-record-id", "record_id", "blob_id", "url", "uri",
)  # fmt: skip
_LEAST_MEAN_CHARS: Final = 40  # of a column of an unknown name that may be the text


def columns_of(path: str) -> tuple[str | None, str | None]:
    """Return the columns of the text and of the id of a local source, by its first file that has any."""
    source = Source(path=path)
    for file in list_files(source, where="FILE")[:3]:
        columns = head_columns(file, source)
        if columns:
            return text_column(columns), id_column(columns)
    return None, None


def text_column(columns: Mapping[str, Sequence[Any]]) -> str | None:
    """Return the column that is called as texts are, else the one with the longest strings."""
    strings = {
        name: values for name, values in columns.items() if values and all(isinstance(value, str) for value in values)
    }
    named = _named(strings, _TEXTS)
    if named is not None:
        return named
    lengths = {name: sum(map(len, values)) / len(values) for name, values in strings.items()}
    longest = max(lengths, key=lambda name: lengths[name], default=None)
    return longest if longest is not None and lengths[longest] >= _LEAST_MEAN_CHARS else None


def id_column(columns: Mapping[str, Sequence[Any]]) -> str | None:
    """Return the column that is called as ids are and whose values differ."""
    distinct = {
        name: values
        for name, values in columns.items()
        if values and all(isinstance(value, str | int) for value in values) and len(set(values)) == len(values)
    }
    return _named(distinct, _IDS)


def _named(columns: Mapping[str, Any], wanted: Sequence[str]) -> str | None:
    """Return the column with the first of these names, in any case; of nested ones the last part counts."""
    for candidates in ([name for name in columns if "." not in name], [name for name in columns if "." in name]):
        lasts = {name.rpartition(".")[2].lower(): name for name in reversed(candidates)}
        if column := next((lasts[name] for name in wanted if name in lasts), None):
            return column
    return None
