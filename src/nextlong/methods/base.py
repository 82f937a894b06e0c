"""The contract of a method: its options and needs, its input and its output.

A `DocumentMethod` concatenates documents or parts of them: from `CorpusArrays` it
returns `Draft`s, and `documents.py` builds the steps that it needs. A `ChunkMethod`
builds its own steps. Code outside this folder asks a method for its layout and its
needs and never checks its name, so a method can be added as one file, or by another
package (entry point `nextlong.methods`).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final, Generic, Literal, NamedTuple, TypeVar

import numpy as np
import pyarrow as pa

from nextlong.arrays import Floats, Hashes, Int8s, Ints
from nextlong.engine.step import Step
from nextlong.methods.vectors import Vectors
from nextlong.plugins import METHODS
from nextlong.recipe import Recipe, Section
from nextlong.schemas import Layout
from nextlong.text import Json

_OptionsT = TypeVar("_OptionsT", bound=Section)


class Need(StrEnum):
    """What a method needs besides the documents."""

    CHUNK_NEIGHBOURS = "the chunks nearest to each chunk of the sampled documents"
    DOCUMENT_NEIGHBOURS = "the documents nearest to each document"
    DOCUMENT_VECTORS = (
        "the vectors of all documents, to search again when the neighbours are used up"
    )
    KEYWORDS = "keywords of each document"
    TOPICS = "topics, and the documents that BM25 finds for each of them"
    CONTEXTS = "chunks that change a model's entropy in a document, for some documents"


@dataclass(frozen=True)
class Citation:
    """A paper on arXiv; `authors` are joined by `and`."""

    key: str
    title: str
    authors: str
    # Its first two digits are the year.
    arxiv: str

    def bibtex(self) -> str:
        """Return the entry of a bibliography."""
        lines = [
            f"@article{{{self.key},",
            f"  title = {{{{{self.title}}}}},",
            f"  author = {{{self.authors}}},",
            f"  journal = {{arXiv preprint arXiv:{self.arxiv}}},",
            f"  year = {{20{self.arxiv[:2]}}}",
            "}",
        ]
        return "\n".join(lines)


NEXTLONG: Final = Citation(
    key="gao2025nextlong",
    title="NExtLong: Toward Effective Long-Context Training without Long Documents",
    authors=(
        "Gao, Chaochen and Wu, Xing and Lin, Zijia and Zhang, Debing and Hu, Songlin"
    ),
    arxiv="2501.12766",
)


class Method(ABC, Generic[_OptionsT]):
    """A method decides which documents make up a sequence, and in which order."""

    # The value of `compose.method`, and the name of the method's section of the recipe.
    name: str
    # The model of that section.
    Options: type[Section] = Section
    layout: Layout = Layout.CONCATENATED
    needs: frozenset[Need] = frozenset()
    # For reports: to what the score of a span is the cosine; empty if there are no
    # scores.
    scores: str = ""
    # The paper of the method, for the data card.
    citation: Citation | None = None

    def describe(self, options: _OptionsT) -> str:
        """Return the name of the method in reports.

        With anything that readers of the data must know.
        """
        return self.name

    def repeats_documents(self, options: _OptionsT) -> bool:
        """Return whether a document may be in several sequences.

        For extended sequences: a meta-document.
        """
        return False

    def promises(self, options: _OptionsT) -> Json:
        """Return the properties of the drafts, which `verify` checks."""
        return {
            "method": self.name,
            "layout": self.layout.value,
            "repeats_documents": self.repeats_documents(options),
        }


class ChunkMethod(Method[_OptionsT]):
    """A method that chooses single chunks, by steps of its own."""

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
        """Return the steps from the chunks to the drafts; the last one drafts.

        Each `attempt`, from 0, gives more drafts.
        """


def method_of(recipe: Recipe) -> Method[Any]:
    """Return the method of the recipe.

    Raises PluginError if another package registered something else under its name.
    """
    return METHODS.load(recipe.compose.method, Method)


def described(recipe: Recipe) -> str:
    """Return the name of the recipe's method in reports."""
    return method_of(recipe).describe(recipe.options)


@dataclass(frozen=True, kw_only=True)
class Neighbours:
    """The nearest documents of some documents, nearest first.

    Those of `queries[i]` are `documents[offsets[i] : offsets[i + 1]]`.
    """

    queries: Ints  # (q,) positions among all documents, as are `documents`
    offsets: Ints  # (q + 1,)
    documents: Ints  # (m,) never the query itself
    cosines: Floats  # (m,) descending within a query

    def table(self) -> tuple[Ints, Floats]:
        """Return neighbours and cosines, (q, k) each: rows padded with -1."""
        counts = np.diff(self.offsets)
        width = int(counts.max(initial=0))
        documents = np.full((len(counts), width), -1, np.int64)
        cosines = np.full((len(counts), width), -1.0, np.float32)
        is_filled = np.arange(width) < counts[:, None]
        documents[is_filled] = self.documents
        cosines[is_filled] = self.cosines
        return documents, cosines


@dataclass(frozen=True, kw_only=True)
class TopicHits:
    """The documents found for topics, best first.

    Those of topic i are `documents[offsets[i] : offsets[i + 1]]`.
    """

    keys: Hashes  # (t,) hashes of the topics' texts, for sampling
    offsets: Ints  # (t + 1,)
    documents: Ints  # (m,) positions among all documents

    def of(self, topic: int) -> Ints:
        """Return the documents of a topic."""
        first, last = self.offsets[topic : topic + 2]
        return self.documents[first:last]


@dataclass(frozen=True, kw_only=True)
class Contexts:
    """The candidates of some documents, and how they change a model's entropy there.

    Those of document `documents[i]` are [offsets[i], offsets[i + 1]); each is the chunk
    `numbers` of the document `owners`.
    """

    documents: Ints  # (d,) positions among all documents
    offsets: Ints  # (d + 1,)
    owners: Ints  # (c,) positions among all documents
    numbers: Ints  # (c,) from 0
    cosines: Floats  # (c,) to the text around an uncertain token
    # (c,) of the entropy, at the token where it is largest; negative: raised at all
    reductions: Floats
    are_all: bool  # whether no other document can have candidates
    too_long: int = 0  # documents passed over, because longer than half a sequence


@dataclass(frozen=True, kw_only=True)
class CorpusArrays:
    """The n documents of the corpus that have chunks, and what the method needs."""

    # (n,) keys for sampling, so that file order and shards do not matter.
    content_hashes: Hashes
    # (n,) including the separators within and after the document.
    tokens: Ints
    # (n + 1,) into chunk_tokens.
    chunk_offsets: Ints
    # (chunks,)
    chunk_tokens: Ints
    neighbours: Neighbours | None = None
    vectors: Vectors | None = None
    # list<uint64> (n,), memory-mapped: hashes of words.
    keywords: pa.ChunkedArray | None = None
    topic_hits: TopicHits | None = None
    contexts: Contexts | None = None


class Draft(NamedTuple):
    """One sequence: documents in reading order; composing truncates it at T."""

    # (r,) positions; an interleaved draft names a document once for each of its parts,
    # in order.
    documents: Ints
    # (r,) cosines, NaN or None for none.
    scores: Floats | None = None
    # (r,) the number of chunks of each part; None: whole documents.
    chunks: Ints | None = None
    # (r,) of a supported draft: the first chunk of each part in its document, and its
    # role: whole documents, and before each of these what was chosen for it.
    firsts: Ints | None = None
    roles: Int8s | None = None


@dataclass(frozen=True, kw_only=True)
class Drafted:
    """Drafts in the order in which they are used, and what the method filtered out.

    The counts are None for a method that does not filter.
    """

    drafts: Sequence[Draft] = ()
    # Drafts abandoned because neighbours ran out before T.
    starved: int = 0
    # Documents filtered out as near-duplicates.
    near_duplicates: int | None = None
    # Documents that share no keyword with another document.
    unshared_keywords: int | None = None
    # Documents for which no context was found.
    without_contexts: int = 0
    # Documents longer than half a sequence, passed over in the search for contexts.
    too_long: int = 0
    # Whether another attempt, which finds contexts of more documents, may give more.
    limited: bool = False


@dataclass(frozen=True, kw_only=True)
class DraftRequest:
    """The drafts to make (`sequences` None: as many as possible), and their length.

    A draft has `target_tokens` or more.
    """

    target_tokens: int
    sequences: int | None
    seed: int


def stretches(
    order: Ints,
    tokens: Ints,
    *,
    enough: int,
    sequences: int | None = None,
) -> list[Ints]:
    """Cut `order` into consecutive pieces that just reach `enough` tokens.

    `order` has positions in `tokens`; there are at most `sequences` pieces.
    """
    # (len(order) + 1,): the tokens before each position.
    filled = np.concatenate([[0], np.cumsum(tokens[order])])
    pieces: list[Ints] = []
    first = 0
    while sequences is None or len(pieces) < sequences:
        last = int(np.searchsorted(filled, filled[first] + enough))
        # The remaining documents do not reach `enough`.
        if last == len(filled):
            break
        pieces.append(order[first:last])
        first = last
    return pieces


class DocumentMethod(Method[_OptionsT]):
    """A method that concatenates documents or parts of them, by `draft` alone."""

    # The documents whose neighbours it needs.
    searches: Literal["all documents", "sampled documents"] = "all documents"
    # Raise it whenever the same documents and options give other drafts.
    version: int = 1

    def neighbours(self, options: _OptionsT) -> int | None:
        """Return the number of neighbours that each searched document needs.

        None: as many as fill a sequence.
        """
        return None

    @abstractmethod
    def draft(
        self, documents: CorpusArrays, options: _OptionsT, request: DraftRequest
    ) -> Drafted:
        """Return the sequences.

        Sample by content hashes (`nextlong.rng`), so that file order and shards do not
        matter.
        """
