"""Look: sample the user's files before a run: documents, bytes of text, and some of the texts.

In:  the recipe's section `ingest` and its files. Out: one `Look` per source, for `nextlong plan` and `init`. A small corpus is
read completely. Of a larger one, places spread over each source are read, because files may differ, and so may their ends.
Uncompressed JSON lines can be read from any byte and Parquet from any row group; other files are read from the beginning up to
a limit, and a fraction of their records is sampled.
"""

from __future__ import annotations

import bisect
import itertools
import math
import random
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final

from nextlong.corpus.ingest import content_hash, normalized_hash
from nextlong.corpus.select import Exclusion, exclusions_of
from nextlong.reading import records
from nextlong.reading.compression import compression_of
from nextlong.reading.files import (
    FilePart,
    InputFile,
    SourceFiles,
    open_file,
)
from nextlong.reading.formats import (
    estimate_text_bytes,
    format_of,
    read_records,
    request_of,
    with_columns_of_source,
)
from nextlong.reading.records import (
    FilteredItem,
    Record,
    Reject,
    RejectKind,
    Skip,
    SplittableFormat,
)
from nextlong.recipe import Source
from nextlong.recipe.keys import Ingest

_READ_BYTES: Final = 64_000_000  # of text; takes about a second
_LEAST_READ_BYTES: Final = (
    1_000_000  # of a source that is small compared with the others
)
_KEPT_BYTES: Final = 8_000_000  # of text on which plan tries the steps
_LEAST_KEPT_BYTES: Final = 100_000  # some dozens of documents
_WHOLE_FILES: Final = 1000  # opening more files takes too long
_FIRST_REJECTS: Final = 3  # shown in a message
_PLACES: Final = 128  # sampled in a source that is too large to be read completely
_LEAST_STRETCH: Final = 4_096  # bytes read per place
_MOST_THROUGH: Final = 256_000_000  # bytes of a source's compressed files, which can only be read from the beginning
_LEAST_THROUGH: Final = 1_000_000  # bytes of each of these files


@dataclass
class Look:
    """A sample of one source, without documents in `ingest.exclude`; `texts` are some of its distinct texts.

    `rejects` counts rejected records; `first_rejects` are the first ones of a source that was read completely.
    """

    source: Source
    is_whole: bool  # the source was read completely, and all distinct texts are kept
    scale: float  # size of the source relative to what was read
    rejects: Counter[RejectKind]
    first_rejects: Sequence[Reject]
    skipped: Counter[str]  # records that are no documents by their kind, by reason
    documents: int = 0
    read_bytes: int = 0
    distinct_documents: int = 0
    distinct_chars: int = 0
    texts: list[str] = field(default_factory=list)

    @property
    def text_bytes(self) -> float:
        """Estimated bytes of text in the source."""
        return self.scale * self.read_bytes

    @property
    def text_scale(self) -> float:
        """Size of the source's distinct texts relative to the kept ones."""
        return self.scale * self.distinct_chars / max(1, sum(map(len, self.texts)))


def look_at(ingest: Ingest, files: SourceFiles) -> list[Look]:
    """Return a `Look` for each source with at least one record."""
    estimates = list(map(estimate_text_bytes, files, ingest.sources))
    total = max(1, sum(estimates))
    digest_of = normalized_hash if ingest.dedup == "normalized" else content_hash
    exclusions, _ = exclusions_of(ingest.exclude, ingest.sources)
    seen: set[int] = set()
    looks = []
    for source, source_files, estimate, exclusion in zip(
        ingest.sources, files, estimates, exclusions, strict=True
    ):
        reading = _Reading(source, source_files, ingest.max_document_chars, exclusion)
        most_bytes = max(_LEAST_READ_BYTES, _READ_BYTES * estimate // total)
        is_whole = estimate <= most_bytes and len(source_files) <= _WHOLE_FILES
        share = min(1.0, most_bytes / max(1, estimate))
        every_record = itertools.chain.from_iterable(map(reading.records, source_files))
        texts, scale = (
            (reading.texts(every_record), 1.0) if is_whole else reading.sample(share)
        )
        keep_every = max(
            1,
            round(
                min(estimate, most_bytes)
                / max(_LEAST_KEPT_BYTES, _KEPT_BYTES * estimate // total)
            ),
        )
        look = Look(
            source,
            is_whole,
            scale,
            reading.rejects,
            reading.first_rejects if is_whole else (),
            reading.skipped,
        )
        for raw in texts:
            look.documents += 1
            look.read_bytes += len(raw)
            if (digest := digest_of(raw)) in seen:
                continue
            seen.add(digest)
            text = raw.decode(errors="replace")
            look.distinct_documents += 1
            look.distinct_chars += len(text)
            if digest % keep_every == 0 or not look.texts:
                look.texts.append(text)
        look.is_whole = is_whole and len(look.texts) == look.distinct_documents
        if look.documents or look.rejects or look.skipped:
            looks.append(look)
    return looks


def kept_shares(looks: Sequence[Look]) -> list[float]:
    """Return the fraction of each source that select keeps: by its caps, then by weights, with the scarcest source whole."""
    shares, per_weight = [], []
    for look in looks:
        own_documents, own_chars = (
            look.scale * look.distinct_documents,
            look.scale * look.distinct_chars,
        )
        by_documents = (look.source.max_documents or own_documents) / max(
            1.0, own_documents
        )
        by_chars = (look.source.max_chars or own_chars) / max(1.0, own_chars)
        one_document = 1 / max(1.0, own_documents)  # select keeps at least one
        shares.append(min(1.0, max(one_document, min(by_documents, by_chars))))
        per_weight.append(
            own_chars / (look.source.weight or math.inf)
        )  # 0 without a weight
    scale = min(
        (share * each for share, each in zip(shares, per_weight, strict=True) if each),
        default=0.0,
    )
    return [
        scale / each if each else share
        for share, each in zip(shares, per_weight, strict=True)
    ]


class _Reading:
    """Read a source as ingest does; `rejects` counts rejected records."""

    def __init__(
        self,
        source: Source,
        files: Sequence[InputFile],
        max_chars: int,
        exclusion: Exclusion,
    ) -> None:
        self._source, self._files, self._max_chars, self._exclusion = (
            source,
            files,
            max_chars,
            exclusion,
        )
        self.rejects = Counter[RejectKind]()
        self.first_rejects: list[Reject] = []
        self.skipped = Counter[str]()

    def sample(self, share: float) -> tuple[Iterable[bytes], float]:
        """Return about a `share` of the texts from random places, and the size of the source relative to what was read."""
        # One place in each of equal intervals of the source's bytes, so that all parts of all files have the same weight.
        draw, ends = (
            random.Random(0),
            list(itertools.accumulate(file.bytes for file in self._files)),
        )
        texts, through, covered = (
            list[bytes](),
            set[int](),
            0.0,
        )  # `covered`: bytes of files that were read
        for number in range(_PLACES):
            offset = (number + draw.random()) / _PLACES * ends[-1]
            index = min(bisect.bisect_right(ends, offset), len(self._files) - 1)
            file = self._files[index]
            if index in through or not file.bytes:
                continue
            reader = format_of(file.name, self._source)
            is_whole = bool(compression_of(file.name) or self._source.encoding)
            if not is_whole and isinstance(reader, SplittableFormat):
                place = (offset - ends[index] + file.bytes) / file.bytes
                stretch = max(_LEAST_STRETCH, int(share * ends[-1] / _PLACES))
                with records.explained(file), open_file(file) as stream:
                    request = request_of(FilePart(file), self._source, self._max_chars)
                    items, file_share = reader.read_at(
                        stream, request, position=place, read_bytes=stretch
                    )
                    every = with_columns_of_source(items, self._source, file)
                    sampled = list(self.texts(every))
            else:
                through.add(index)
                most = max(_LEAST_THROUGH, int(_MOST_THROUGH * file.bytes / ends[-1]))
                sampled, file_share = self.sample_through(
                    file, share=share, max_bytes=most, draw=draw
                )
            texts += sampled
            covered += file_share * file.bytes
        return texts, ends[-1] / covered if covered else 1.0

    def sample_through(
        self, file: InputFile, *, share: float, max_bytes: int, draw: random.Random
    ) -> tuple[list[bytes], float]:
        """Return about a `share` of the texts in the first `max_bytes` of text of a file, and their fraction of the file."""
        kept: list[FilteredItem] = []
        read, kept_bytes, total = 0, 0, estimate_text_bytes([file], self._source)
        for item in self.records(file):
            text_bytes = (
                len(item.text.encode(errors="replace"))
                if isinstance(item, Record)
                else 0
            )
            read += text_bytes
            if draw.random() < share:
                kept.append(item)
                kept_bytes += text_bytes
            if read > max_bytes:
                break
        else:
            total = read
        return list(self.texts(kept)), kept_bytes / max(1, total) if read else share

    def records(self, file: InputFile) -> Iterator[FilteredItem]:
        return read_records(
            FilePart(file), self._source, max_document_chars=self._max_chars
        )

    def texts(self, items: Iterable[FilteredItem]) -> Iterator[bytes]:
        """Yield the texts of valid documents, as ingest judges them; count the rejects by kind."""
        for item in items:
            if isinstance(item, Skip):
                self.skipped[item.reason] += 1
            elif isinstance(item, Reject):
                self.rejects[item.kind] += 1
                if len(self.first_rejects) < _FIRST_REJECTS:
                    self.first_rejects.append(item)
            elif isinstance(item, Record) and not self._exclusion.holds(item.source_id):
                if problem := records.text_problem(item.text, self._max_chars):
                    self.rejects[problem[0]] += 1
                else:
                    yield item.text.encode()
