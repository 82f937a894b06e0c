"""Look at the user's files before anything runs: how many documents and how much text they hold, and some of the texts.

In:  the recipe's section `ingest` and its files. Out: a `Look` a source.
Files of a source may be unlike each other, and so may the beginning and the end of one; so all is read that can be read in
some seconds, and of larger corpora random places of files spread over each source, of large files more than of small ones.
"""

from __future__ import annotations

import bisect
import itertools
import random
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from nextlong.corpus.exclude import exclusions_of
from nextlong.corpus.ingest import content_hash, normalized_hash
from nextlong.reading.files import FilePart, InputFile
from nextlong.reading.formats import read_records
from nextlong.reading.records import FilteredOut, Record, Reject, RejectKind
from nextlong.reading.sampling import (
    Limits,
    can_be_entered,
    documents_in,
    estimate_text_bytes,
    sample_at,
    sample_from_start,
)
from nextlong.recipe import Source
from nextlong.recipe.keys import Ingest

_READ_BYTES: Final = 64_000_000  # of text, in a second
_LEAST_READ_BYTES: Final = 1_000_000  # of a source that is small beside the others
_KEPT_BYTES: Final = 8_000_000  # what the steps are tried on
_LEAST_KEPT_BYTES: Final = 100_000  # some dozens of documents
_WHOLE_FILES: Final = 1000  # more take long to open
_FIRST_REJECTS: Final = 3  # that a message names
_PLACES: Final = 128  # of a source that is too large to be read whole
_LEAST_STRETCH: Final = 4_096  # bytes read at a place
_MOST_THROUGH: Final = 256_000_000  # of a source's compressed files, which can only be read from their beginnings …
_LEAST_THROUGH: Final = 1_000_000  # … and of each of them


@dataclass(frozen=True)
class Look:
    """What was read of one source; `texts` are some of the distinct ones, which no earlier document equals.

    `rejects` counts what was read and is no document; `first_rejects` are the first ones of a source that was read whole. What
    `ingest.exclude` names is not there.
    """

    source: Source
    is_whole: bool  # everything was read, and every distinct text kept
    scale: float  # of the whole source, per what was read
    documents: int
    read_bytes: int
    distinct_documents: int
    distinct_chars: int
    texts: list[str]
    rejects: Counter[RejectKind]
    first_rejects: Sequence[Reject] = ()

    @property
    def text_bytes(self) -> float:
        """Of the whole source."""
        return self.scale * self.read_bytes

    @property
    def text_scale(self) -> float:
        """Of the whole source's distinct texts, per those kept."""
        return self.scale * self.distinct_chars / max(1, sum(map(len, self.texts)))


def look_at(ingest: Ingest, files: Sequence[Sequence[InputFile]]) -> list[Look]:
    """Return a look at each source that has a document to show, or a record that is none."""
    estimates = [
        estimate_text_bytes(source_files, source) for source_files, source in zip(files, ingest.sources, strict=True)
    ]
    total = max(1, sum(estimates))
    seen: set[int] = set()
    looks = []
    exclusions = exclusions_of(ingest.exclude, ingest.sources).each
    sources = zip(ingest.sources, files, estimates, exclusions, strict=True)
    for source, source_files, estimate, exclusion in sources:
        look = _look_at_source(
            source,
            source_files,
            estimate=estimate,
            most_bytes=max(_LEAST_READ_BYTES, _READ_BYTES * estimate // total),
            kept_bytes=max(_LEAST_KEPT_BYTES, _KEPT_BYTES * estimate // total),
            limits=Limits(max_document_chars=ingest.max_document_chars, is_excluded=exclusion.holds),
            digest_of=normalized_hash if ingest.dedup == "normalized" else content_hash,
            seen=seen,
        )
        if look.documents or look.rejects:
            looks.append(look)
    return looks


def kept_shares(looks: Sequence[Look], documents: Sequence[float], chars: Sequence[float]) -> list[float]:
    """Return which share of each source select keeps: its caps, then the weights, the scarcest source kept whole."""
    shares = []
    for look, own_documents, own_chars in zip(looks, documents, chars, strict=True):
        by_documents = (look.source.max_documents or own_documents) / max(1.0, own_documents)
        by_chars = (look.source.max_chars or own_chars) / max(1.0, own_chars)
        one_document = 1 / max(1.0, own_documents)  # select keeps at least one
        shares.append(min(1.0, max(one_document, min(by_documents, by_chars))))
    weights = [look.source.weight for look in looks]
    weighted = zip(shares, chars, weights, strict=True)
    scale = min(
        (share * source_chars / weight for share, source_chars, weight in weighted if weight and source_chars),
        default=0.0,
    )
    return [
        scale * weight / source_chars if weight and source_chars else share
        for share, source_chars, weight in zip(shares, chars, weights, strict=True)
    ]


def _look_at_source(
    source: Source,
    files: Sequence[InputFile],
    *,
    estimate: int,
    most_bytes: int,
    kept_bytes: int,
    limits: Limits,
    digest_of: Callable[[bytes], int],
    seen: set[int],
) -> Look:
    rejects = Counter[RejectKind]()
    first_rejects: list[Reject] = []
    is_whole = estimate <= most_bytes and len(files) <= _WHOLE_FILES
    if is_whole:
        parts = (read_records(FilePart(file), source, max_document_chars=limits.max_document_chars) for file in files)
        items = _noting(itertools.chain.from_iterable(parts), first_rejects)
        texts: Iterable[bytes] = documents_in(items, limits, rejects)
        scale = 1.0
    else:
        share = min(1.0, most_bytes / max(1, estimate))
        texts, scale, rejects = _sample(source, files, share, limits)
    keep_every = max(1, round(min(estimate, most_bytes) / kept_bytes))
    documents = read_bytes = distinct = distinct_chars = 0
    kept: list[str] = []
    for raw in texts:
        documents += 1
        read_bytes += len(raw)
        digest = digest_of(raw)
        if digest in seen:
            continue
        seen.add(digest)
        text = raw.decode(errors="replace")
        distinct += 1
        distinct_chars += len(text)
        if digest % keep_every == 0 or not kept:
            kept.append(text)
    kept_all = is_whole and len(kept) == distinct
    return Look(source, kept_all, scale, documents, read_bytes, distinct, distinct_chars, kept, rejects, first_rejects)


def _sample(
    source: Source, files: Sequence[InputFile], share: float, limits: Limits
) -> tuple[list[bytes], float, Counter[RejectKind]]:
    """Return about a `share` of a source's texts, from random places, how much more there is in all, and rejects.

    The places lie one in each of equal stretches of the source's bytes, so every part of every file counts as it should.
    """
    draw = random.Random(0)
    ends = list(itertools.accumulate(file.bytes for file in files))
    texts: list[bytes] = []
    rejects = Counter[RejectKind]()
    covered = 0.0  # bytes of files, at the places
    through: set[int] = set()
    for number in range(_PLACES):
        at = (number + draw.random()) / _PLACES * ends[-1]
        index = min(bisect.bisect_right(ends, at), len(files) - 1)
        file = files[index]
        if index in through or not file.bytes:
            continue
        if can_be_entered(file, source):
            place = (at - ends[index] + file.bytes) / file.bytes
            stretch = max(_LEAST_STRETCH, int(share * ends[-1] / _PLACES))
            sampled = sample_at(file, source, position=place, read_bytes=stretch, limits=limits)
        else:
            through.add(index)
            most_through = max(_LEAST_THROUGH, int(_MOST_THROUGH * file.bytes / ends[-1]))
            sampled = sample_from_start(file, source, share=share, max_bytes=most_through, limits=limits, rng=draw)
        texts += sampled.texts
        rejects += sampled.rejects
        covered += sampled.share * file.bytes
    return texts, ends[-1] / covered if covered else 1.0, rejects


def _noting(
    items: Iterable[Record | Reject | FilteredOut], first_rejects: list[Reject]
) -> Iterator[Record | Reject | FilteredOut]:
    """Yield the items; keep the first rejects."""
    for item in items:
        if isinstance(item, Reject) and len(first_rejects) < _FIRST_REJECTS:
            first_rejects.append(item)
        yield item
