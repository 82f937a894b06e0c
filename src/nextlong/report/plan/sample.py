"""Sample: the size of the corpus and texts that stand for it, from the part of the user's files that `corpus.look` reads.

In:  a recipe and its files. Out: how much the corpus holds before and after caps and weights, and a sample of its documents.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import fsspec
import numpy as np
from numpy.typing import NDArray

from nextlong.corpus.chunk import chunk_text
from nextlong.corpus.look import kept_shares, look_at
from nextlong.engine.step import Amounts
from nextlong.errors import CorpusError
from nextlong.reading.files import InputFile
from nextlong.reading.records import RejectKind
from nextlong.recipe import Recipe
from nextlong.recipe.amounts import MIN_GAP_CHUNKS
from nextlong.recipe.keys import Chunk
from nextlong.sequences.shortfall import has_gaps
from nextlong.text import counted

_COMPRESSED_SHARE = 0.3  # of JSON, by gzip or zstd


@dataclass(frozen=True)
class CorpusSample:
    """The size of the corpus, and documents drawn from it.

    `stands_for`, `chars` and `chunks` have shape (n,), one row for each document of `looked_at`: how many documents of the
    corpus it stands for, its characters, and its chunks. `size` is exact if `is_whole`.
    """

    size: Amounts  # up to `evaluation_bytes`
    is_whole: bool
    looked_at: list[str]
    stands_for: NDArray[np.float64]
    chars: NDArray[np.int64]
    chunks: NDArray[np.int64]
    rejects: Mapping[RejectKind, float]  # records of the whole corpus that are no documents

    def some_chunks(self, chunk: Chunk, most: int) -> list[str]:
        """Return about `most` chunks, spread over the documents."""
        texts = self.looked_at[:: max(1, len(self.looked_at) // most)]
        chunks = [text[start:end] for text in texts for start, end in chunk_text(text, **chunk.model_dump())]
        return chunks[:: max(1, len(chunks) // most)]

    def mixed(self) -> list[str]:
        """Return documents in random order, each source with the share that it has after caps and weights."""
        draw = random.Random(0)
        likely = self.stands_for / self.stands_for.max()
        texts = [text for text, share in zip(self.looked_at, likely, strict=True) if draw.random() < share]
        texts = texts or self.looked_at[:1]
        draw.shuffle(texts)
        return texts

    def dropped(self, recipe: Recipe, *, chars_per_token: float) -> tuple[float, float]:
        """Return how many documents are longer than a sequence, and how many others leave too little room for negatives."""
        longest = recipe.sequence_tokens * chars_per_token
        is_long = (self.chunks >= recipe.compose.min_meta_chunks) & (self.chars >= longest)
        needed = np.zeros(len(self.chars))
        if has_gaps(recipe.compose):
            # All but the last negative are whole chunks, so a gap takes one of them, or more if min_gap_tokens asks for more.
            mean_chunk, asked = self.chars.sum() / max(1, self.chunks.sum()), recipe.compose.min_gap_tokens
            gap = MIN_GAP_CHUNKS * mean_chunk if asked == "auto" else asked * chars_per_token
            needed = (self.chunks - 1) * max(gap, mean_chunk) + gap
        is_tight = (self.chunks >= recipe.compose.min_meta_chunks) & ~is_long & (self.chars + needed >= longest)
        return float(self.stands_for[is_long].sum()), float(self.stands_for[is_tight].sum())

    def documents_of(self, chunks: float) -> float:
        """Return how many documents a random `chunks` of the corpus's chunks, each used once, come from, on average."""
        # A document of k chunks is missed if all of them are: with a probability of (1 - used) ** k.
        used = min(1.0, chunks / max(1.0, self.size.chunks))
        return float((self.stands_for * (1 - (1 - used) ** self.chunks)).sum())


def sample(recipe: Recipe, files: Sequence[Sequence[InputFile]]) -> CorpusSample:
    """Look at every source. Raises CorpusError if no document is found."""
    every = look_at(recipe.ingest, files)
    looks = [look for look in every if look.documents]
    kinds = dict.fromkeys(kind for look in every for kind in look.rejects)
    rejects = {kind: sum(look.scale * look.rejects.get(kind, 0) for look in every) for kind in kinds}
    if not looks:
        if recipe.ingest.exclude is not None and not rejects:
            raise CorpusError(
                "ingest.exclude excludes all documents of a sample; delete lines of it, or set it to null"
            )
        most = sum((look.rejects for look in every), Counter[RejectKind]()).most_common(3)
        why = ", ".join(f"{counted(count, 'record')}: {kind}" for kind, count in most)
        raise CorpusError(
            f"no document was found in a sample of {files[0][0].path} or other files of ingest.sources "
            f"({why or 'they are empty'}); correct ingest.sources; `nextlong run` names every reject"
        )
    chars = [look.scale * look.distinct_chars for look in looks]
    documents = [look.scale * look.distinct_documents for look in looks]
    kept = kept_shares(looks, documents, chars)
    texts = [text for look in looks for text in look.texts]
    options = recipe.chunk.model_dump()
    chunks = np.array([len(chunk_text(text, **options)) for text in texts])
    stands_for = np.concatenate(
        [np.full(len(look.texts), share * look.text_scale) for share, look in zip(kept, looks, strict=True)]
    )
    is_eligible = chunks >= recipe.compose.min_meta_chunks
    size = Amounts(
        text_bytes=sum(look.text_bytes for look in looks),
        documents=sum(look.scale * look.documents for look in looks),
        kept_documents=float(np.dot(kept, documents)),
        kept_chars=float(np.dot(kept, chars)),
        chunks=float(stands_for @ chunks),
        eligible=float(stands_for[is_eligible].sum()),
        meta_chunks=float((stands_for * chunks)[is_eligible].sum()),
        evaluation_bytes=sum(map(_evaluation_bytes, recipe.decontaminate.files)),
    )
    is_whole = all(look.is_whole for look in looks)
    return CorpusSample(size, is_whole, texts, stands_for, np.array(list(map(len, texts))), chunks, rejects)


def _evaluation_bytes(file: str) -> float:
    """Return how much there is to read in an evaluation file; one that is missing is the run's to refuse."""
    system, path = fsspec.core.url_to_fs(file)
    if not system.exists(path):
        return 0.0
    return (system.size(path) or 0) / (_COMPRESSED_SHARE if file.endswith((".gz", ".zst")) else 1)
