"""Token ids: corpora that are already tokenized → documents as text.

In:  the ids of a row or document of a file, and the tokenizer that made them.
Out: a record for each document; its text has the same ids again.

Documents end where the format says so, and at each end token. Special tokens at both
ends of a document are no text. A text that the tokenizer encodes to other ids is a
reject: it was made with another tokenizer, or cut within a character.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np
import pyarrow as pa

from nextlong.arrays import AnyArray
from nextlong.artifacts.sequence_files import read_tokenizer, without_options
from nextlong.engine import store
from nextlong.errors import CorpusError
from nextlong.reading.files import FilePart, InputFile, open_file
from nextlong.reading.records import (
    InputFormat,
    Items,
    ReadRequest,
    Reject,
    RejectKind,
)
from nextlong.recipe import Source
from nextlong.text import first_sentence

if TYPE_CHECKING:
    from tokenizers import Tokenizer

Ids = AnyArray  # (tokens,), integers of any width

# Names of the token after a text, in the order in which they are looked for.
_END_TOKENS: Final = ("<|end_of_text|>", "<|endoftext|>", "</s>", "<eos>", "<|eos|>")


class TokenRow(NamedTuple):
    """Ids that a format stores together.

    values: of the columns of the request, for all documents in the row
    own_id: the user's id, None if the row has none
    disk_bytes: that it takes in the listed file; None: those of its ids
    """

    ids: Ids
    values: tuple[Any, ...] = ()
    own_id: Any = None
    disk_bytes: int | None = None


class TokenFormat(InputFormat):
    """A format of token ids, which needs the `tokenizer` of its source."""

    is_text = False
    has_columns = False
    has_token_ids = True

    @abstractmethod
    def token_rows(self, stream: Any, request: ReadRequest) -> Iterator[TokenRow]:
        """Yield the ids of a file, at most a row at a time."""

    def read(self, stream: pa.NativeFile, request: ReadRequest) -> Items:
        """Yield a record or reject for each document; `line` is its number."""
        if request.columns and not self.has_columns:
            raise CorpusError(
                where=request.part.file.path,
                problem="it holds token ids and has no columns, but the source's "
                f"metadata or filter names {request.columns[0]!r}",
                fix="remove them for token ids",
            )
        yield from records_of(self.token_rows(stream, request), request)

    def text_bytes(
        self, file: InputFile, source: Source, head_bytes: int
    ) -> tuple[int, int]:
        """Estimate from the first ids of a file how much text it holds."""
        decoder = decoder_of(source, file)
        request = ReadRequest(FilePart(file), source, (), head_bytes)
        text_bytes = 0
        read_bytes = 0
        disk_bytes = 0
        with open_file(file) as stream:
            for row in self.token_rows(stream, request):
                for ids in decoder.documents(row.ids):
                    text_bytes += len(decoder.decoded(ids).encode())
                read_bytes += row.ids.nbytes
                disk_bytes += row.disk_bytes or row.ids.nbytes
                if read_bytes >= head_bytes:
                    break
        return text_bytes, disk_bytes


def records_of(rows: Iterator[TokenRow], request: ReadRequest) -> Items:
    """Yield the record or reject of each document of some rows of ids."""
    file = request.part.file
    decoder = decoder_of(request.source, file)
    line = 0
    for row in rows:
        for ids in decoder.documents(row.ids):
            line += 1
            text = decoder.text_of(ids)
            if text is None:
                detail = f"{len(ids):,} ids"
                yield Reject(file.name, line, RejectKind.OTHER_IDS, detail)
            else:
                yield request.record(text, row.own_id, line, row.values)


@dataclass(frozen=True)
class Decoder:
    """A tokenizer, the id that ends a document (-1: none), and all special ids."""

    tokenizer: Tokenizer
    end_id: int
    special_ids: frozenset[int]

    def documents(self, ids: Ids) -> Iterator[list[int]]:
        """Yield the ids of each document, without special tokens at its ends."""
        ends = np.flatnonzero(ids == self.end_id) + 1
        bounds = [0, *ends.tolist(), len(ids)]
        for start, stop in pairwise(bounds):
            document = ids[start:stop].tolist()
            while document and document[-1] in self.special_ids:
                document.pop()
            first = 0
            while first < len(document) and document[first] in self.special_ids:
                first += 1
            # Between two end tokens there may be nothing.
            if first < len(document):
                yield document[first:]

    def text_of(self, ids: list[int]) -> str | None:
        """Return the text of a document; None if it has other ids than these."""
        text = self.decoded(ids)
        encoding = self.tokenizer.encode(text, add_special_tokens=False)
        return text if encoding.ids == ids else None

    def decoded(self, ids: list[int]) -> str:
        """Return the text of ids, with the names of special tokens among them."""
        try:
            return str(self.tokenizer.decode(ids, skip_special_tokens=False))
        except OverflowError:
            return ""  # one is negative or above 32 bits, such as -1 for padding


def decoder_of(source: Source, file: InputFile) -> Decoder:
    """Return the decoder of a source. Raises CorpusError if it has no tokenizer."""
    if source.tokenizer is None:
        raise CorpusError(
            where=file.path,
            problem="it holds token ids, and its source names no tokenizer",
            fix="set the source's tokenizer to the one that made them",
        )
    return _decoder(source.tokenizer, source.end_token)


def identity_of(source: Source) -> list[str] | None:
    """Return what the texts of a source of token ids depend on; None for text."""
    if source.tokenizer is None:
        return None
    path = _tokenizer_file(source.tokenizer)
    name = store.hash_file(path) if path.is_file() else source.tokenizer
    return [name, source.end_token or ""]


@lru_cache(maxsize=4)
def _decoder(name: str, end_token: str | None) -> Decoder:
    path = _tokenizer_file(name)
    if path.is_file():
        tokenizer = read_tokenizer(path)
    else:
        tokenizer = _from_hub(name)
    special = {
        token.content: token_id
        for token_id, token in tokenizer.get_added_tokens_decoder().items()
        if token.special
    }
    end_id: int | None = -1
    if end_token is not None:
        end_id = tokenizer.token_to_id(end_token)
    else:
        known = [special[token] for token in _END_TOKENS if token in special]
        end_id = next(iter(known), -1)
    if end_id is None:
        raise CorpusError(
            where="ingest.sources[].end_token",
            value=repr(end_token),
            problem=f"is not a token of {name}",
            fix=f"choose one of its special tokens: {', '.join(special)}",
        )
    return Decoder(tokenizer, end_id, frozenset({*special.values(), end_id}))


def _from_hub(name: str) -> Tokenizer:
    from tokenizers import Tokenizer

    # The library raises a bare Exception for unknown names and without a network.
    try:
        tokenizer = without_options(Tokenizer.from_pretrained(name))
    except Exception as error:
        raise CorpusError(
            where="ingest.sources[].tokenizer",
            value=repr(name),
            problem=f"cannot be loaded: {first_sentence(error)}",
            fix="give a tokenizer.json, a folder with one, or a name on the hub",
        ) from None
    tokenizer.encode_special_tokens = True
    return tokenizer


def _tokenizer_file(name: str) -> Path:
    path = Path(name).expanduser()
    return path / "tokenizer.json" if path.is_dir() else path


def rows_in(
    stream: Any, dtype: np.dtype[Any], tokens_of_rows: Iterable[int]
) -> Iterator[TokenRow]:
    """Yield rows of ids that follow each other in a stream."""
    for tokens in tokens_of_rows:
        raw = read_exactly(stream, tokens * dtype.itemsize)
        yield TokenRow(np.frombuffer(raw, dtype))


def read_exactly(stream: Any, size: int) -> bytes:
    """Return the next `size` bytes.

    Raises OSError if the file ends before them, or if `size` is negative.
    """
    if size < 0:
        raise OSError(f"a part of it has {size:,} bytes")
    content = stream.read(size)
    # Streams of decompressed files may return less at a time.
    while len(content) < size:
        block = stream.read(size - len(content))
        if not block:
            raise OSError(f"{size - len(content):,} bytes are missing")
        content += block
    return bytes(content)
