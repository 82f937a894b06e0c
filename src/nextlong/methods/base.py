"""The contract: what a method says of itself, what it gets (`CorpusArrays`), and what it hands back (`Draft`s).

`DocumentMethod` does all of a `Method` but `draft` for methods that put documents, or parts of documents, one after the other.
Everything outside this folder asks a method for its layout and its needs, never for its name: that is what lets one be added as a
file of its own, or by another distribution (entry point `nextlong.methods`).
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
    """What a method is given beside the documents."""

    CHUNK_NEIGHBOURS = "the chunks nearest to each chunk of the drawn documents"
    DOCUMENT_NEIGHBOURS = "the documents nearest to each document"
    DOCUMENT_VECTORS = "the vectors of all documents, to search again where neighbours are used up"
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
    """Which documents make one sequence, in what order."""

    name: str  # of `compose.method`, and of the method's section of the recipe …
    Options: type[Section] = Section  # … whose keys these are
    layout: Layout = Layout.CONCATENATED
    needs: frozenset[Need] = frozenset()
    scores: str = ""  # what the score of a span is the cosine to, for reports; empty if there are none
    citation: Citation | None = None  # of the method's paper, for the data card beside NExtLong's

    def describe(self, options: _OptionsT) -> str:
        """Return the method as reports name it: what data must not be taken for is part of the name."""
        return self.name

    def repeats_documents(self, options: _OptionsT) -> bool:
        """Say whether a document (of extended sequences: a meta-document) may make up several sequences."""
        return False

    def promises(self, options: _OptionsT) -> Json:
        """Return what the method says of its drafts, which `verify` holds them to."""
        repeats = self.repeats_documents(options)
        return {"method": self.name, "layout": self.layout.value, "repeats_documents": repeats}

    @abstractmethod
    def steps(self, recipe: Recipe, ingest: Step, chunk: Step, tokenizer: Step, *, attempt: int) -> list[Step]:
        """Return the steps from the chunks to the drafts, which the last makes; each `attempt`, from 0, makes more."""


def method_of(recipe: Recipe) -> Method[Any]:
    """Return the recipe's method. Raises PluginError if another distribution's is none."""
    return METHODS.load(recipe.compose.method, Method)


def described(recipe: Recipe) -> str:
    """Return the recipe's method as reports name it."""
    return method_of(recipe).describe(recipe.options)


@dataclass(frozen=True, kw_only=True)
class Neighbours:
    """The nearest documents of some, best first: those of `queries[i]` are `documents[offsets[i]:offsets[i + 1]]`."""

    queries: NDArray[np.int64]  # (q,) positions among the documents, as `documents`
    offsets: NDArray[np.int64]  # (q + 1,)
    documents: NDArray[np.int64]  # (m,) never the query itself
    cosines: NDArray[np.float32]  # (m,) descending within a query

    def table(self) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
        """Return neighbours and cosines as rows of equal length, shape (q, k), filled up with -1."""
        counts = np.diff(self.offsets)
        shape = (len(counts), int(counts.max(initial=0)))
        documents, cosines = np.full(shape, -1, np.int64), np.full(shape, -1.0, np.float32)
        filled = np.arange(shape[1]) < counts[:, None]
        documents[filled], cosines[filled] = self.documents, self.cosines
        return documents, cosines


@dataclass(frozen=True, kw_only=True)
class CorpusArrays:
    """All n documents of the corpus that have chunks, and what the method needs of them."""

    content_hashes: NDArray[np.uint64]  # (n,) what draws go by, so that file order and shards do not matter
    tokens: NDArray[np.int64]  # (n,) with what parts a document from the next one
    chunk_offsets: NDArray[np.int64]  # (n + 1,) into chunk_tokens
    chunk_tokens: NDArray[np.int64]  # (chunks,)
    neighbours: Neighbours | None = None
    vectors: Vectors | None = None
    keywords: pa.ChunkedArray | None = None  # list<uint64> (n,), mapped: hashes of words


class Draft(NamedTuple):
    """One sequence: documents in reading order; composing cuts it at T."""

    # (r,) positions; of an interleaved draft a document once for each of its parts, in order
    documents: NDArray[np.int64]
    scores: NDArray[np.float32] | None = None  # (r,) cosines, NaN or None for none
    chunks: NDArray[np.int64] | None = None  # (r,) that each part takes; None: each document whole


@dataclass(frozen=True, kw_only=True)
class Drafted:
    """Drafts in the order in which they are to serve, and what the method left out; None if it leaves out none for that."""

    drafts: Sequence[Draft] = ()
    starved: int = 0  # drafts given up because neighbours ran out before T
    near_duplicates: int | None = None  # documents
    unshared_keywords: int | None = None  # documents of whose keywords no other document has one


@dataclass(frozen=True, kw_only=True)
class DraftRequest:
    """What is asked of a method: drafts of at least so many tokens, at most so many of them (None: all there are)."""

    target_tokens: int
    sequences: int | None
    seed: int


def stretches(
    order: NDArray[np.int64], tokens: NDArray[np.int64], *, enough: int, sequences: int | None = None
) -> list[NDArray[np.int64]]:
    """Cut `order`, positions into `tokens`, into at most `sequences` consecutive pieces that each just reach `enough`."""
    filled = np.concatenate([[0], np.cumsum(tokens[order])])
    pieces: list[NDArray[np.int64]] = []
    first = 0
    while sequences is None or len(pieces) < sequences:
        last = int(np.searchsorted(filled, filled[first] + enough))
        if last == len(filled):  # what is left does not reach it
            break
        pieces.append(order[first:last])
        first = last
    return pieces


class DocumentMethod(Method[_OptionsT]):
    """A method that puts documents, or parts of them, one after the other: it only says which, by `draft`."""

    searches: Literal["all documents", "sampled documents"] = "all documents"  # whose neighbours are needed
    version: int = 1  # to be raised whenever the same documents and options give other drafts

    def neighbours(self, options: _OptionsT) -> int | None:
        """Return how many neighbours of each searched document are needed; None: as many as fill a sequence."""
        return None

    @abstractmethod
    def draft(self, documents: CorpusArrays, options: _OptionsT, request: DraftRequest) -> Drafted:
        """Return the sequences, drawn by content (`nextlong.rng`) so that file order and shards do not matter."""

    def steps(self, recipe: Recipe, ingest: Step, chunk: Step, tokenizer: Step, *, attempt: int) -> list[Step]:
        """Return the steps that give the method what it needs, and the one that drafts."""
        from nextlong.methods.documents import document_steps  # what searches is not loaded to read a recipe

        return document_steps(self, recipe, ingest, chunk, tokenizer, attempt=attempt)
