"""EntropyLong: a document behind the chunks that lower a model's entropy in it.

The paper's method (arXiv 2510.02330), as public reading notes give it; the authors
published a training script only (caskcsg/longcontext): the chunks that lower the
entropy at an uncertain token of a document by more than ε = 0.4 of it are its
*contexts*, and a sequence is its contexts in random order and then the document.
`contexts.py` finds them.

Ours: a sequence has exactly T tokens. It holds several documents, each behind its own
contexts, until it is full; the last document has only as many contexts as reach T, and
is cut there. A document without contexts is not used, and counted. A chunk is in a
sequence once, so a later document has the context that stands there already in common;
one that would need a chunk of itself goes to the next sequence.

`distractors` are ours as well: PolicyLong (arXiv 2604.07809) says that hard negatives,
too, come from the current model's entropies, but its abstract, which is all that we
have, not how. Here they are the candidates that raise the entropy at all of their
anchors, the highest first.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from typing import Annotated, NamedTuple

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
    cosine: float = np.nan


class _Unit(NamedTuple):
    """A document and the chunks before it."""

    document: int
    before: list[_Part]


class _EntropyMethod(DocumentMethod[Entropy]):
    name = "entropy"
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
            draft = _fill(waiting, documents, tokens=request.target_tokens)
            if draft is None:
                break
            drafts.append(draft)
        return Drafted(
            drafts=drafts,
            limited=not found.are_all,
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
            before.append(
                _Part(
                    document=int(found.owners[first + place]),
                    chunk=int(found.numbers[first + place]),
                    role=NEGATIVE if reductions[place] < 0 else CONTEXT,
                    cosine=float(found.cosines[first + place]),
                )
            )
        yield _Unit(int(found.documents[index]), before)


def _fill(
    waiting: deque[_Unit], documents: CorpusArrays, *, tokens: int
) -> Draft | None:
    """Return a sequence of the first units that fill it; these no longer wait.

    None if all of them do not fill one.
    """
    parts: list[_Part] = []
    postponed: list[_Unit] = []
    left = tokens
    while waiting and left > 0:
        unit = waiting.popleft()
        before = _placeable(unit, parts)
        if not before:
            postponed.append(unit)
            continue
        whole = _Part(unit.document, 0, DOCUMENT)
        added = [*before, whole]
        sizes = [_tokens(part, documents) for part in added]
        # The last document of a sequence has no more contexts than reach its end.
        while len(added) > 2 and sum(sizes) - sizes[-2] >= left:
            del added[-2], sizes[-2]
        parts += added
        left -= sum(sizes)
    waiting.extendleft(reversed(postponed))
    if left > 0:
        return None
    of_documents, chunks, roles, cosines = zip(*parts, strict=True)
    numbers = np.array(of_documents)
    is_whole = np.array(roles) == DOCUMENT
    return Draft(
        documents=numbers,
        scores=np.array(cosines, np.float32),
        chunks=np.where(is_whole, np.diff(documents.chunk_offsets)[numbers], 1),
        firsts=np.array(chunks),
        roles=np.array(roles, np.int8),
    )


def _placeable(unit: _Unit, parts: Sequence[_Part]) -> list[_Part]:
    """Return the chunks of a unit that may follow the parts of a sequence.

    A context comes first, where a mask between documents begins. There are none if no
    context may follow, or if a chunk of the unit's document stands in the sequence.
    """
    present = {part[:2] for part in parts}
    whole = {part.document for part in parts if part.role == DOCUMENT}
    before = []
    for part in unit.before:
        if part[:2] not in present and part.document not in whole:
            before.append(part)
    contexts = [part for part in before if part.role == CONTEXT]
    if not contexts or unit.document in {part.document for part in parts}:
        return []
    before.remove(contexts[0])
    return [contexts[0], *before]


def _tokens(part: _Part, documents: CorpusArrays) -> int:
    if part.role == DOCUMENT:
        return int(documents.tokens[part.document])
    return int(
        documents.chunk_tokens[documents.chunk_offsets[part.document] + part.chunk]
    )


METHOD = _EntropyMethod()
