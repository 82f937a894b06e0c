"""File format: what the house knows of a format of the user's files; who asks for more than its name asks this.

Each module that reads a format states one, or two that differ little; `formats.py` has them all. A new one is a module, its
name in the recipe's `format`, and a place in that list.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, Protocol

from nextlong.inputs.files import InputFile, Part
from nextlong.inputs.record import Record, Reject
from nextlong.recipe import Source

Items = Iterator[Record | Reject]


class Read(Protocol):
    """Yield each record or reject of an open file, in file order; `wanted` are the columns beside text and id."""

    def __call__(
        self, stream: Any, part: Part, source: Source, max_document_chars: int, wanted: Sequence[str], /
    ) -> Items: ...


class Stretch(NamedTuple):
    """Records of one place of a file, and which share of the file they are."""

    items: Items
    share: float


class ReadAt(Protocol):
    """Read about `stretch` bytes on disk from a place of an open file, 0 its beginning and 1 its end, and nothing before."""

    def __call__(
        self,
        stream: Any,
        file: InputFile,
        source: Source,
        wanted: Sequence[str],
        /,
        *,
        place: float,
        stretch: int,
        max_document_chars: int,
    ) -> Stretch: ...


@dataclass(frozen=True, kw_only=True)
class FileFormat:
    """A format of files: its name in recipes, the endings of its files' names, and how they are read.

    `head` yields the first records, as they are. `text_bytes` estimates from the head of a file, of so many bytes, how many
    bytes of text it holds: (bytes of text, bytes on disk that hold them). `read_at`, `is_lines` and `split` say what can be read
    without what lies before it: a place; any line, as each is a record of its own; parts of about so many bytes.
    """

    name: str
    suffixes: tuple[str, ...]
    read: Read
    head: Callable[[Any, InputFile], Iterator[Mapping[str, Any]]]
    text_bytes: Callable[[InputFile, Source, int], tuple[int, int]]
    read_at: ReadAt | None = None
    is_lines: bool = False
    split: Callable[[InputFile, int], list[Part]] | None = None
    compression: Literal["around", "inside"] = "around"  # whether .gz or .zst may follow the suffix
    has_columns: bool = True
    extractor: Callable[[], str] | None = None  # which version of a library takes out the text, "" where it is missing


def no_head(stream: Any, file: InputFile) -> Iterator[Mapping[str, Any]]:
    """Yield nothing: such files have no columns of their own."""
    del stream, file
    return iter(())
