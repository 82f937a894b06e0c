"""The contract of a method: its options and needs, its input (`CorpusArrays`) and its output (`Draft`s).

`DocumentMethod` implements all of `Method` except `draft`, for methods that concatenate documents or parts of them. Code
outside this folder asks a method for its layout and its needs and never checks its name, so a method can be added as one
file, or by another package (entry point `nextlong.methods`).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Final, Generic, Literal, NamedTuple, TypeVar

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from nextlong.engine.step import Step
from nextlong.plugins import METHODS
from nextlong.recipe import Recipe, Section
from nextlong.schemas import Layout
from nextlong.text import Json

if TYPE_CHECKING:
    from nextlong.methods.documents import Vectors

_OptionsT = TypeVar("_OptionsT", bound=Section)


class Need(StrEnum):
    """What a method needs besides the documents."""

    CHUNK_NEIGHBOURS = "the chunks nearest to each chunk of the sampled documents"
    DOCUMENT_NEIGHBOURS = "the documents nearest to each document"
    DOCUMENT_VECTORS = (
        "the vectors of all documents, to search again when the neighbours are used up"
    )
    KEYWORDS = "keywords of each document"


@dataclass(frozen=True)
class Citation:
    """A paper on arXiv; `authors` are joined by `and`."""

    key: str
    title: str
    authors: str
    arxiv: str  # its first two digits are the year

    def bibtex(self) -> str:
        """Return the entry of a bibliography."""
        return (
            f"@article{{{self.key},\n  title = {{{{{self.title}}}}},\n  author = {{{self.authors}}},\n"
            f"  journal = {{arXiv preprint arXiv:{self.arxiv}}},\n  year = {{20{self.arxiv[:2]}}}\n}}"
        )


NEXTLONG: Final = Citation(
    "gao2025nextlong",
    "NExtLong: Toward Effective Long-Context Training without Long Documents",
    "Gao, Chaochen and Wu, Xing and Lin, Zijia and Zhang, Debing and Hu, Songlin",
    "2501.12766",
)


class Method(ABC, Generic[_OptionsT]):
    """A method decides which documents make up a sequence, and in which order."""

    name: str  # the value of `compose.method` and the name of the method's section of the recipe
    Options: type[Section] = Section  # the model of that section
    layout: Layout = Layout.CONCATENATED
    needs: frozenset[Need] = frozenset()
    scores: str = ""  # for reports: to what the score of a span is the cosine; empty if there are no scores
    citation: Citation | None = None  # the paper of the method, for the data card

    def describe(self, options: _OptionsT) -> str:
        """Return the name of the method in reports, with anything that readers of the data must know."""
        return self.name

    def repeats_documents(self, options: _OptionsT) -> bool:
        """Return whether a document (for extended sequences: a meta-document) may be in several sequences."""
        return False

    def promises(self, options: _OptionsT) -> Json:
        """Return the properties of the drafts, which `verify` checks."""
        return {
            "method": self.name,
            "layout": self.layout.value,
            "repeats_documents": self.repeats_documents(options),
        }

    @abstractmethod
    def steps(
        self,
        recipe: Recipe,
        ingest: Step,
        chunk: Step,
        tokenizer: Step,
        *,
        attempt: int,
    ) -> list[Step]:
        """Return the steps from the chunks to the drafts; the last one drafts. Each `attempt`, from 0, gives more drafts."""


def method_of(recipe: Recipe) -> Method[Any]:
    """Return the method of the recipe. Raises PluginError if another package registered something else under its name."""
    return METHODS.load(recipe.compose.method, Method)


def described(recipe: Recipe) -> str:
    """Return the name of the recipe's method in reports."""
    return method_of(recipe).describe(recipe.options)


@dataclass(frozen=True, kw_only=True)
class Neighbours:
    """The nearest documents of some documents, nearest first: `documents[offsets[i]:offsets[i + 1]]` for `queries[i]`."""

    queries: NDArray[np.int64]  # (q,) positions among all documents, as are `documents`
    offsets: NDArray[np.int64]  # (q + 1,)
    documents: NDArray[np.int64]  # (m,) never the query itself
    cosines: NDArray[np.float32]  # (m,) descending within a query

    def table(self) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
        """Return neighbours and cosines as rows of equal length, shape (q, k), padded with -1."""
        counts = np.diff(self.offsets)
        shape = (len(counts), int(counts.max(initial=0)))
        documents, cosines = (
            np.full(shape, -1, np.int64),
            np.full(shape, -1.0, np.float32),
        )
        filled = np.arange(shape[1]) < counts[:, None]
        documents[filled], cosines[filled] = self.documents, self.cosines
        return documents, cosines


@dataclass(frozen=True, kw_only=True)
class CorpusArrays:
    """All n documents of the corpus that have chunks, and what the method needs about them."""

    content_hashes: NDArray[
        np.uint64
    ]  # (n,) keys for sampling, so that file order and shards do not matter
    tokens: NDArray[
        np.int64
    ]  # (n,) including the separators within and after the document
    chunk_offsets: NDArray[np.int64]  # (n + 1,) into chunk_tokens
    chunk_tokens: NDArray[np.int64]  # (chunks,)
    neighbours: Neighbours | None = None
    vectors: Vectors | None = None
    keywords: pa.ChunkedArray | None = (
        None  # list<uint64> (n,), memory-mapped: hashes of words
    )


class Draft(NamedTuple):
    """One sequence: documents in reading order; composing truncates it at T."""

    # (r,) positions; an interleaved draft names a document once for each of its parts, in order
    documents: NDArray[np.int64]
    scores: NDArray[np.float32] | None = None  # (r,) cosines, NaN or None for none
    chunks: NDArray[np.int64] | None = (
        None  # (r,) the number of chunks of each part; None: whole documents
    )


@dataclass(frozen=True, kw_only=True)
class Drafted:
    """Drafts in the order in which they are used, and counts of what the method filtered out (None: it does not filter)."""

    drafts: Sequence[Draft] = ()
    starved: int = 0  # drafts abandoned because neighbours ran out before T
    near_duplicates: int | None = None  # documents filtered out as near-duplicates
    unshared_keywords: int | None = (
        None  # documents that share no keyword with another document
    )


@dataclass(frozen=True, kw_only=True)
class DraftRequest:
    """The number of drafts (None: as many as possible) and their least number of tokens."""

    target_tokens: int
    sequences: int | None
    seed: int


def stretches(
    order: NDArray[np.int64],
    tokens: NDArray[np.int64],
    *,
    enough: int,
    sequences: int | None = None,
) -> list[NDArray[np.int64]]:
    """Cut `order`, positions into `tokens`, into consecutive pieces that just reach `enough` tokens; at most `sequences`."""
    filled = np.concatenate([[0], np.cumsum(tokens[order])])
    pieces: list[NDArray[np.int64]] = []
    first = 0
    while sequences is None or len(pieces) < sequences:
        last = int(np.searchsorted(filled, filled[first] + enough))
        if last == len(filled):  # the remaining documents do not reach `enough`
            break
        pieces.append(order[first:last])
        first = last
    return pieces


class DocumentMethod(Method[_OptionsT]):
    """A method that concatenates documents or parts of them; it only implements `draft`."""

    searches: Literal["all documents", "sampled documents"] = (
        "all documents"  # the documents whose neighbours it needs
    )
    version: int = (
        1  # raise it whenever the same documents and options give other drafts
    )

    def neighbours(self, options: _OptionsT) -> int | None:
        """Return the number of neighbours that each searched document needs; None: as many as fill a sequence."""
        return None

    @abstractmethod
    def draft(
        self, documents: CorpusArrays, options: _OptionsT, request: DraftRequest
    ) -> Drafted:
        """Return the sequences; sample by content hashes (`nextlong.rng`), so that file order and shards do not matter."""

    def steps(
        self,
        recipe: Recipe,
        ingest: Step,
        chunk: Step,
        tokenizer: Step,
        *,
        attempt: int,
    ) -> list[Step]:
        """Return the steps that compute what the method needs, and the step that drafts."""
        from nextlong.methods.documents import (
            document_steps,
        )  # not imported just to read a recipe

        return document_steps(self, recipe, ingest, chunk, tokenizer, attempt=attempt)
