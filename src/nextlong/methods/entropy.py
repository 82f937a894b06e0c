"""EntropyLong: a document behind the chunks that lower a model's entropy in it.

The paper's method (arXiv 2510.02330), as public reading notes give it; the authors
published a training script only (caskcsg/longcontext): the chunks that lower the
entropy at an uncertain token of a document by more than ε = 0.4 of it are its
*contexts*, and a sequence is its contexts in random order and then the document.
`contexts.py` finds them.

Ours: a sequence has exactly T tokens. It holds several documents, each behind its own
contexts, until it is full; the last document has only as many contexts as reach T, and
is cut there. A document begins before T: contexts that would push it beyond are left
out, and if its first one alone does, the document is passed over for one of the next
100 that fits. If none fits, that first context ends the sequence, and its document goes
to the next one with all of its contexts. A document without contexts, or longer than
half a sequence, is not used, and counted. A chunk is in a sequence once, so a later
document has the context that stands there already in common; one that would need a
chunk of itself goes to the next sequence.

`distractors` are ours as well: PolicyLong (arXiv 2604.07809) says that hard negatives,
too, come from the current model's entropies, but its abstract, which is all that we
have, not how. Here they are the candidates that raise the entropy at all of their
anchors, the highest first.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from typing import Annotated, Final, NamedTuple

import numpy as np
from pydantic import Field

from nextlong.methods.base import (
    Citation,
    Contexts,
    CorpusArrays,
    DocumentMethod,
    Draft,
    Drafted,
    DraftRequest,
    Need,
)
from nextlong.methods.contexts import Screening
from nextlong.rng import rng_for, shuffled
from nextlong.schemas import CONTEXT, DOCUMENT, NEGATIVE, Layout

# Documents that are passed over for one that fits into the rest of a sequence. With no
# limit, each sequence would look at all of them, and prefer the shortest contexts.
_LOOK_AHEAD: Final = 100


class Entropy(Screening):
    """Options of `compose.method: entropy`: documents behind chunks that help."""

    min_reduction: Annotated[float, Field(ge=0, lt=1)] = Field(
        0.4,
        description=(
            "share of the entropy at an uncertain token that a context must remove"
        ),
    )
    distractors: Annotated[int, Field(ge=0)] = Field(
        0,
        description=(
            "hard negatives for each context: candidates that raise the entropy"
        ),
    )


class _Part(NamedTuple):
    """A chunk before a document, or a whole document, whose role is DOCUMENT."""

    document: int
    chunk: int  # its number in the document
    role: int
    tokens: int
    cosine: float = np.nan

    @property
    def key(self) -> tuple[int, int]:
        """Return what names the chunk in the corpus."""
        return self.document, self.chunk


class _Unit(NamedTuple):
    """The chunks before a document, and the document."""

    before: list[_Part]
    whole: _Part


class _EntropyMethod(DocumentMethod[Entropy]):
    name = "entropy"
    version = 2  # every document that is used up begins in its sequence
    layout = Layout.SUPPORTED
    citation = Citation(
        key="jia2025entropylong",
        title="EntropyLong: Effective Long-Context Training via Predictive Uncertainty",
        authors=(
            "Jia, Junlong and Chen, Ziyang and Wu, Xing and Gao, Chaochen and "
            "Lin, Zijia and Zhang, Debing and Hu, Songlin and Guo, Binghui"
        ),
        arxiv="2510.02330",
    )
    Options = Entropy
    needs = frozenset({Need.CONTEXTS})

    def draft(
        self, documents: CorpusArrays, options: Entropy, request: DraftRequest
    ) -> Drafted:
        found = documents.contexts
        assert found is not None
        units = list(_units(found, documents, options, seed=request.seed))
        waiting = deque(unit for unit in units if unit.before)
        drafts: list[Draft] = []
        while request.sequences is None or len(drafts) < request.sequences:
            parts = _fill(waiting, tokens=request.target_tokens)
            if parts is None:
                break
            drafts.append(_draft_of(parts, documents))
        return Drafted(
            drafts=drafts,
            limited=not found.are_all,
            too_long=found.too_long,
            without_contexts=sum(not unit.before for unit in units),
        )


def _units(
    found: Contexts, documents: CorpusArrays, options: Entropy, *, seed: int
) -> Iterator[_Unit]:
    """Yield the scored documents in random order, and their chunks in random order."""
    hashes = documents.content_hashes[found.documents]
    for index in shuffled(hashes, seed=seed, stage="entropy").tolist():
        first, last = found.offsets[index : index + 2]
        reductions = found.reductions[first:last]
        contexts = np.flatnonzero(reductions > options.min_reduction)
        raising = np.flatnonzero(reductions < 0)
        by_rise = raising[np.argsort(reductions[raising], kind="stable")]
        negatives = by_rise[: options.distractors * len(contexts)]
        rng = rng_for(seed, "entropy.order", int(hashes[index]))
        before = []
        for place in rng.permutation(np.concatenate([contexts, negatives])).tolist():
            owner = int(found.owners[first + place])
            number = int(found.numbers[first + place])
            chunk = documents.chunk_offsets[owner] + number
            before.append(
                _Part(
                    document=owner,
                    chunk=number,
                    role=NEGATIVE if reductions[place] < 0 else CONTEXT,
                    tokens=int(documents.chunk_tokens[chunk]),
                    cosine=float(found.cosines[first + place]),
                )
            )
        document = int(found.documents[index])
        whole = _Part(document, 0, DOCUMENT, int(documents.tokens[document]))
        yield _Unit(before, whole)


class _Filling:
    """A sequence that is being filled: its parts, and the tokens that are left."""

    def __init__(self, tokens: int) -> None:
        self.parts: list[_Part] = []
        self.left = tokens
        self._chunks: set[tuple[int, int]] = set()
        self._documents: set[int] = set()
        self._whole: set[int] = set()

    def add(self, parts: Sequence[_Part]) -> None:
        for part in parts:
            self.parts.append(part)
            self.left -= part.tokens
            self._documents.add(part.document)
            if part.role == DOCUMENT:
                self._whole.add(part.document)
            else:
                self._chunks.add(part.key)

    def placeable(self, unit: _Unit) -> list[_Part]:
        """Return the chunks of a unit that may follow.

        A context comes first, where a mask between documents begins. There are none if
        no context may follow, or if a chunk of the unit's document stands here already.
        """
        before = []
        for part in unit.before:
            if part.key not in self._chunks and part.document not in self._whole:
                before.append(part)
        contexts = [part for part in before if part.role == CONTEXT]
        if not contexts or unit.whole.document in self._documents:
            return []
        before.remove(contexts[0])
        return [contexts[0], *before]


def _fill(waiting: deque[_Unit], *, tokens: int) -> list[_Part] | None:
    """Return the parts of a sequence of the first units that fill it.

    Units of which the document is in it no longer wait. None if the units do not fill
    a sequence.
    """
    filling = _Filling(tokens)
    while filling.left > 0:
        following = _following(waiting, filling)
        if not following:
            return None
        filling.add(following)
    return filling.parts


def _following(waiting: deque[_Unit], filling: _Filling) -> list[_Part]:
    """Return the parts that follow in a sequence; none if no unit gives any.

    A unit is passed over if its document would begin beyond the end. If no other one
    fits, its first context ends the sequence, and it waits for the next one as well.
    """
    ending: list[_Part] = []
    passed = 0
    for place, unit in enumerate(waiting):
        before = _trimmed(filling.placeable(unit), unit.whole, left=filling.left)
        if not before:
            continue
        if _tokens(before) < filling.left:
            del waiting[place]
            return [*before, unit.whole]
        # A sequence of a context alone would use up no unit, so drafting would not end.
        if filling.parts:
            ending = ending or before
            passed += 1
        if passed == _LOOK_AHEAD:
            break
    return ending


def _trimmed(before: Sequence[_Part], whole: _Part, *, left: int) -> list[_Part]:
    """Return the first chunks before a document, as many as a sequence has room for.

    Without those that the document does not need to reach the end, and without those
    that would push all of it beyond the end. The first chunk always stays.
    """
    kept = list(before)
    while len(kept) > 1:
        reaches = _tokens(kept[:-1]) + whole.tokens >= left
        pushes_out = _tokens(kept) >= left
        if not reaches and not pushes_out:
            break
        kept.pop()
    return kept


def _tokens(parts: Sequence[_Part]) -> int:
    return sum(part.tokens for part in parts)


def _draft_of(parts: Sequence[_Part], documents: CorpusArrays) -> Draft:
    numbers = np.array([part.document for part in parts])
    roles = np.array([part.role for part in parts], np.int8)
    chunk_counts = np.diff(documents.chunk_offsets)[numbers]
    return Draft(
        documents=numbers,
        scores=np.array([part.cosine for part in parts], np.float32),
        chunks=np.where(roles == DOCUMENT, chunk_counts, 1),
        firsts=np.array([part.chunk for part in parts]),
        roles=roles,
    )


METHOD = _EntropyMethod()
