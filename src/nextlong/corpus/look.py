"""Look: sample the user's files before a run: their size, and some of the texts.

In:  the recipe's section `ingest` and its files. Out: one `Look` per source, for the
     checks before a run, for `nextlong plan` and for `init`.

A small corpus is read completely. Of a larger one, places spread over each source are
read, because files may differ, and so may their ends. Uncompressed JSON lines can be
read from any byte and Parquet from any row group; other files are read from the
beginning up to a limit, and a fraction of their records is sampled.
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
# Of a source that is small compared with the others.
_MIN_READ_BYTES: Final = 1_000_000
_KEPT_BYTES: Final = 8_000_000  # of text on which plan tries the steps
_MIN_KEPT_BYTES: Final = 100_000  # some dozens of documents
_WHOLE_FILES: Final = 1000  # opening more files takes too long
_FIRST_REJECTS: Final = 3  # shown in a message
_PLACES: Final = 128  # sampled in a source that is too large to be read completely
_MIN_STRETCH: Final = 4_096  # bytes read per place
# Of a source's compressed files, which can only be read from the beginning, and of each
# of them.
_MAX_THROUGH: Final = 256_000_000
_MIN_THROUGH: Final = 1_000_000


@dataclass
class Look:
    """A sample of one source, without documents in `ingest.exclude`.

    `texts` are some of its distinct texts. `rejects` counts rejected records;
    `first_rejects` are the first ones of a source that was read completely.
    """

    source: Source
    # The source was read completely, and all distinct texts are kept.
    is_whole: bool
    # Size of the source relative to what was read.
    scale: float
    rejects: Counter[RejectKind]
    first_rejects: Sequence[Reject]
    # Records that are no documents by their kind, by reason.
    skipped: Counter[str]
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
        kept_chars = sum(map(len, self.texts))
        return self.scale * self.distinct_chars / max(1, kept_chars)


def look_at(ingest: Ingest, files: SourceFiles) -> list[Look]:
    """Return a `Look` for each source with at least one record."""
    estimates = list(map(estimate_text_bytes, files, ingest.sources))
    total_bytes = max(1, sum(estimates))
    digest_of = normalized_hash if ingest.dedup == "normalized" else content_hash
    exclusions, _ = exclusions_of(ingest.exclude, ingest.sources)
    # Digests of the texts of all sources so far.
    seen: set[int] = set()
    looks = []
    for source, source_files, source_bytes, exclusion in zip(
        ingest.sources, files, estimates, exclusions, strict=True
    ):
        reading = _Reading(source, source_files, ingest.max_document_chars, exclusion)
        max_bytes = max(_MIN_READ_BYTES, _READ_BYTES * source_bytes // total_bytes)
        is_whole = source_bytes <= max_bytes and len(source_files) <= _WHOLE_FILES
        texts: Iterable[bytes]
        if is_whole:
            texts = reading.all_texts()
            scale = 1.0
        else:
            texts, scale = reading.sample(min(1.0, max_bytes / max(1, source_bytes)))
        look = Look(
            source=source,
            is_whole=is_whole,
            scale=scale,
            rejects=reading.rejects,
            first_rejects=reading.first_rejects if is_whole else (),
            skipped=reading.skipped,
        )

        max_kept = max(_MIN_KEPT_BYTES, _KEPT_BYTES * source_bytes // total_bytes)
        read_bytes = min(source_bytes, max_bytes)
        keep_every = max(1, round(read_bytes / max_kept))
        for raw in texts:
            look.documents += 1
            look.read_bytes += len(raw)
            digest = digest_of(raw)
            if digest in seen:
                continue
            seen.add(digest)
            text = raw.decode(errors="replace")
            look.distinct_documents += 1
            look.distinct_chars += len(text)
            # By digest, so that the order of the documents does not matter.
            if digest % keep_every == 0 or not look.texts:
                look.texts.append(text)
        look.is_whole = is_whole and len(look.texts) == look.distinct_documents
        if look.documents or look.rejects or look.skipped:
            looks.append(look)
    return looks


def kept_shares(looks: Sequence[Look]) -> list[float]:
    """Return the fraction of each source that select keeps.

    By its caps, then by weights, with the scarcest source whole.
    """
    capped = [_capped_share(look) for look in looks]
    # Characters per unit of weight, 0 without a weight.
    per_weight: list[float] = []
    for look in looks:
        weight = look.source.weight or math.inf
        per_weight.append(look.scale * look.distinct_chars / weight)
    weighted = [
        share * chars for share, chars in zip(capped, per_weight, strict=True) if chars
    ]
    scarcest = min(weighted, default=0.0)
    return [
        scarcest / chars if chars else share
        for share, chars in zip(capped, per_weight, strict=True)
    ]


def _capped_share(look: Look) -> float:
    """Return the fraction of a source that its caps leave."""
    documents = look.scale * look.distinct_documents
    chars = look.scale * look.distinct_chars
    by_documents = (look.source.max_documents or documents) / max(1.0, documents)
    by_chars = (look.source.max_chars or chars) / max(1.0, chars)
    # Select keeps at least one document.
    one_document = 1 / max(1.0, documents)
    share = min(by_documents, by_chars, 1.0)
    return max(one_document, share)


class _Reading:
    """Read a source as ingest does; `rejects` counts rejected records."""

    def __init__(
        self,
        source: Source,
        files: Sequence[InputFile],
        max_chars: int,
        exclusion: Exclusion,
    ) -> None:
        self._source = source
        self._files = files
        self._max_chars = max_chars
        self._exclusion = exclusion
        self.rejects = Counter[RejectKind]()
        self.first_rejects: list[Reject] = []
        self.skipped = Counter[str]()

    def all_texts(self) -> Iterator[bytes]:
        """Yield the texts of all files."""
        for file in self._files:
            yield from self.texts(self.records(file))

    def sample(self, share: float) -> tuple[list[bytes], float]:
        """Return about a `share` of the texts from random places.

        And the size of the source relative to what was read.
        """
        draw = random.Random(0)
        ends = list(itertools.accumulate(file.bytes for file in self._files))
        source_bytes = ends[-1]
        texts: list[bytes] = []
        # Indices of the files that were read from their beginning.
        read_through: set[int] = set()
        # Bytes of files that were read.
        covered_bytes = 0.0
        stretch = max(_MIN_STRETCH, int(share * source_bytes / _PLACES))
        # One place in each of equal intervals of the source's bytes, so that all parts
        # of all files have the same weight.
        for interval in range(_PLACES):
            offset = (interval + draw.random()) / _PLACES * source_bytes
            index = min(bisect.bisect_right(ends, offset), len(self._files) - 1)
            file = self._files[index]
            if index in read_through or not file.bytes:
                continue
            reader = format_of(file.name, self._source)
            is_whole = bool(compression_of(file.name) or self._source.encoding)
            if not is_whole and isinstance(reader, SplittableFormat):
                sampled, file_share = self.sample_at(
                    file,
                    reader,
                    position=(offset - ends[index] + file.bytes) / file.bytes,
                    read_bytes=stretch,
                )
            else:
                read_through.add(index)
                max_bytes = int(_MAX_THROUGH * file.bytes / source_bytes)
                sampled, file_share = self.sample_through(
                    file,
                    share=share,
                    max_bytes=max(_MIN_THROUGH, max_bytes),
                    draw=draw,
                )
            texts += sampled
            covered_bytes += file_share * file.bytes
        return texts, source_bytes / covered_bytes if covered_bytes else 1.0

    def sample_at(
        self,
        file: InputFile,
        reader: SplittableFormat,
        *,
        position: float,
        read_bytes: int,
    ) -> tuple[list[bytes], float]:
        """Return the texts at a position (0 to 1), and their fraction of the file."""
        request = request_of(FilePart(file), self._source, self._max_chars)
        with records.explained(file), open_file(file) as stream:
            items, file_share = reader.read_at(
                stream, request, position=position, read_bytes=read_bytes
            )
            complete = with_columns_of_source(items, self._source, file)
            return list(self.texts(complete)), file_share

    def sample_through(
        self, file: InputFile, *, share: float, max_bytes: int, draw: random.Random
    ) -> tuple[list[bytes], float]:
        """Return about a `share` of the texts at the beginning of a file.

        Of its first `max_bytes` of text. And their fraction of the file.
        """
        kept: list[FilteredItem] = []
        kept_bytes = 0
        read_bytes = 0
        is_at_end = True
        for item in self.records(file):
            text_bytes = 0
            if isinstance(item, Record):
                text_bytes = len(item.text.encode(errors="replace"))
            read_bytes += text_bytes
            if draw.random() < share:
                kept.append(item)
                kept_bytes += text_bytes
            if read_bytes > max_bytes:
                is_at_end = False
                break
        if not read_bytes:
            return list(self.texts(kept)), share
        file_bytes = read_bytes
        if not is_at_end:
            file_bytes = estimate_text_bytes([file], self._source)
        return list(self.texts(kept)), kept_bytes / max(1, file_bytes)

    def records(self, file: InputFile) -> Iterator[FilteredItem]:
        return read_records(
            FilePart(file), self._source, max_document_chars=self._max_chars
        )

    def texts(self, items: Iterable[FilteredItem]) -> Iterator[bytes]:
        """Yield the texts of valid documents, as ingest judges them.

        Counts the rejects by kind.
        """
        for item in items:
            if isinstance(item, Skip):
                self.skipped[item.reason] += 1
            elif isinstance(item, Reject):
                self.rejects[item.kind] += 1
                if len(self.first_rejects) < _FIRST_REJECTS:
                    self.first_rejects.append(item)
            elif isinstance(item, Record) and not self._exclusion.holds(item.source_id):
                problem = records.text_problem(item.text, self._max_chars)
                if problem is None:
                    yield item.text.encode()
                else:
                    kind, _ = problem
                    self.rejects[kind] += 1
