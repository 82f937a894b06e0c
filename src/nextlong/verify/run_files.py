"""Run files: read a finished run from its files.

In:  a run directory, or one of its variants, RUN@NAME.
Out: its manifests, columns by chunk id, and sequences.

SEQUENCES and TOKENS are read here instead of with the run's own code, because data that
they refer to may be missing (docs/decisions/0019). Ids are looked up shard by shard, so
that memory holds the columns of a few shards and one block of sequences.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from itertools import chain, islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal

import numpy as np
import pyarrow as pa

from nextlong import schemas
from nextlong.arrays import (
    AnyArray,
    Bools,
    Floats,
    Hashes,
    Int8s,
    Int32s,
    Ints,
    UInt32s,
)
from nextlong.artifacts import corpus_files, variant_records
from nextlong.recipe.keys import NEGATIVES, NegativeChoice
from nextlong.schemas import (
    BOS,
    CONTEXT,
    DOCUMENT,
    EOS,
    META,
    NEGATIVE,
    NO_CHUNK,
    ROLES,
    ROW_MASK,
    SEPARATOR,
    SHARD_BITS,
    TASK,
)
from nextlong.text import Json
from nextlong.verify.outcome import MARK, CheckOutcome, chunk_name
from nextlong.verify.reference import Reference

if TYPE_CHECKING:
    from tokenizers import Tokenizer

Ids = Ints
_Columns = dict[str, AnyArray]

UNKNOWN: Final = NO_CHUNK  # for missing values
_BLOCK_TOKENS: Final = 1 << 22  # of sequences that are resolved at a time
# Shards whose CHUNKS, about 2 MB each, stay in memory, because each block of sequences
# refers to nearly all shards.
_CACHED_SHARDS: Final = 64
_NO_MANIFEST: Final[Json] = {"parts": [], "inputs": {}, "fingerprint": ""}


@dataclass(frozen=True)
class StepFiles:
    """The folder and manifest of a step.

    `damage` describes why the manifest cannot be read.
    """

    name: str
    folder: Path
    manifest: Json
    damage: str = ""

    @property
    def is_mix(self) -> bool:
        """Whether the rows need other runs, or hold each sequence more or less often.

        Such rows belong to no run.
        """
        config = self.manifest.get("config", {})
        return bool(config.get("others")) or "mixture" in config

    @property
    def entries(self) -> dict[str, Json]:
        """Size and hash of every file, by name."""
        entries: dict[str, Json] = {}
        for part in self.manifest["parts"]:
            entries.update(part["files"])
        return entries

    @property
    def is_export(self) -> bool:
        config = self.manifest.get("config", {})
        return "format" in config and "split" in config

    def files(self, suffix: str) -> list[Path]:
        """Return the files with the suffix, sorted by the numbers in their names."""
        names = [name for name in self.entries if name.endswith(suffix)]
        return [self.folder / name for name in sorted(names, key=_numbers_in)]


def _numbers_in(name: str) -> list[int]:
    return [int(digits) for digits in re.findall(r"\d+", name)]


def _open_step(name: str, folder: Path) -> StepFiles:
    damage = "is not the manifest of a step"
    try:
        manifest = json.loads((folder / "manifest.json").read_text(encoding="utf-8"))
        has_keys = {"fingerprint", "inputs"} <= manifest.keys()
        if has_keys and all("files" in part for part in manifest["parts"]):
            return StepFiles(name, folder, manifest)
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        damage = f"cannot be read ({error})"
    return StepFiles(name, folder, _NO_MANIFEST, damage)


@dataclass(frozen=True)
class StoredSequence:
    """One sequence of SEQUENCES; all arrays have shape (spans,)."""

    number: int
    id: str
    key: int
    method: str
    layout: str
    chunk: Ids
    role: Int8s
    group: Int32s
    start: Int32s
    end: Int32s
    score: Floats

    @property
    def key_spans(self) -> Ids:
        """The spans of its meta-document or of its documents."""
        return np.flatnonzero(np.isin(self.role, (META, DOCUMENT)))


@dataclass(frozen=True)
class ResolvedSequence(StoredSequence):
    """One sequence with columns of CHUNKS and TOKENS.

    UNKNOWN for a span without a chunk, or with a missing one.
    """

    doc: Ids
    doc_first: Ids  # the document's chunks are [doc_first, doc_stop)
    doc_stop: Ids
    char_start: Ids
    char_end: Ids
    tokens: Ids  # of the whole chunk
    open_ended: Bools  # the chunk does not end in a newline

    @cached_property
    def lengths(self) -> Int32s:
        return self.end - self.start

    @cached_property
    def is_chunk(self) -> Bools:
        return np.isin(self.role, (META, NEGATIVE, DOCUMENT, TASK, CONTEXT))

    @cached_property
    def is_truncated(self) -> Bools:
        """The spans that hold only the beginning of a chunk."""
        return self.is_chunk & (self.lengths < self.tokens)

    def known(self, role: int) -> Ids:
        """Return the spans of a role whose chunks exist."""
        return np.flatnonzero((self.role == role) & (self.doc != UNKNOWN))

    def where(self, span: int) -> str:
        """Return the place of a span in words, for descriptions of breaches."""
        role = f"role {self.role[span]}"
        if 0 <= self.role[span] < len(ROLES):
            role = ROLES[self.role[span]]
        chunk = ""
        if self.chunk[span] != NO_CHUNK:
            chunk = f" {chunk_name(self.chunk[span])}"
        tokens = f"tokens {self.start[span]}–{self.end[span]}"
        return f"sequence {self.number} span {span} ({role}{chunk}, {tokens})"


class StoredRun:
    """A finished run, read from its files."""

    def __init__(self, named: Path, *, sample: int = 100, seed: int = 0) -> None:
        """Read the record and manifests; `sample` and `seed` draw random samples.

        Raises RunError without a finished run.
        """
        variant = variant_records.find(named)
        self.path = variant.run_dir
        self.recipe = variant.recipe
        # Sequences of each SEQUENCES file in the data set; a file may hold more.
        self.sequences_per_part = variant.sequences_per_part
        self.steps = {
            name: _open_step(name, self.path / folder)
            for name, folder in variant.steps.items()
        }
        self.method = str(self.setting("compose", "method", "nextlong"))
        self.sample = sample
        self.seed = seed

    @property
    def sequence_count(self) -> int:
        return sum(self.sequences_per_part)

    def files(self, step: str, suffix: str) -> list[Path]:
        """Return the files of a step with the suffix; none without the step."""
        return self.steps[step].files(suffix) if step in self.steps else []

    @cached_property
    def all_steps(self) -> list[StepFiles]:
        """All finished steps of the run directory, sorted by folder.

        They include those of other variants and mixes.
        """
        manifests = self.path.glob("[0-9][0-9]-*/manifest.json")
        folders = sorted(path.parent for path in manifests)
        return [_open_step(folder.name, folder) for folder in folders]

    @cached_property
    def rows(self) -> dict[str, StepFiles]:
        """The steps that arranged the sequences into rows, by fingerprint.

        Only rows of this data set alone. Steps from which the record's exports were
        made come first, readable or not.
        """
        rows: dict[str, StepFiles] = {}
        if "rows" in self.steps:
            step = self.steps["rows"]
            rows[step.manifest["fingerprint"]] = step
        for step in self.steps.values():
            fingerprint = step.manifest["inputs"].get("rows")
            if fingerprint is not None and fingerprint not in rows:
                rows[fingerprint] = self.open_rows(fingerprint)

        composed = ""
        if "compose" in self.steps:
            composed = self.steps["compose"].manifest["fingerprint"]
        sequences = self.setting("compose", "sequences")
        for step in self.all_steps:
            config = step.manifest.get("config", {})
            has_compose = step.manifest["inputs"].get("compose") == composed
            has_count = config.get("sequences") == [sequences]
            if has_compose and has_count and not step.is_mix:
                rows[step.manifest["fingerprint"]] = step
        return rows

    def open_rows(self, fingerprint: str) -> StepFiles:
        """Return the rows step with a fingerprint, with `damage` if there is none."""
        folders = sorted(self.path.glob(f"*-rows-{fingerprint}"))
        folder = folders[0] if folders else self.path / f"rows-{fingerprint}"
        return _open_step("rows", folder)

    @cached_property
    def earlier_exports(self) -> list[StepFiles]:
        """The exports of the same sequences that are not in the record."""
        recorded = {step.folder for step in self.steps.values()}
        earlier = []
        for step in self.all_steps:
            if step.is_export and step.folder not in recorded:
                if step.manifest["inputs"].get("rows") in self.rows:
                    earlier.append(step)
        return earlier

    def setting(self, section: str, key: str, default: Any = None) -> Any:
        """Return the value of a recipe key; the default if it is null or missing."""
        value = (self.recipe.get(section) or {}).get(key)
        return default if value is None else value

    @property
    def layout(self) -> str:
        """How the documents of a sequence are arranged, as the draft step declared."""
        return str(self.steps["draft"].manifest["config"]["layout"])

    @property
    def task_share(self) -> float:
        """The share of the sequences that have tasks with known answers."""
        return float(self.setting("compose", "tasks", {}).get("share", 0.0))

    @property
    def negatives(self) -> NegativeChoice:
        return NEGATIVES[self.setting("compose", "negatives", "top")]

    @cached_property
    def extra_tokens(self) -> int:
        """The tokens that an export needs in addition to `compose.target_tokens`."""
        configs = [step.manifest.get("config", {}) for step in self.steps.values()]
        return max((config.get("extra_tokens", 0) for config in configs), default=0)

    @cached_property
    def min_gap_tokens(self) -> int:
        """The recipe's `compose.min_gap_tokens`.

        auto: half the tokens of a mean chunk, counted from CHUNKS.
        """
        setting = self.setting("compose", "min_gap_tokens", "auto")
        if setting != "auto":
            return int(setting)
        # As composing estimated it, but from CHUNKS instead of its recorded counts.
        chars = 0
        chunks = 0
        for shard in range(len(self.shards)):
            table = self.chunks(shard)
            chars += int((table["end"] - table["start"]).sum())
            chunks += len(table["start"])
        (part,) = self.steps["tokenizer"].manifest["parts"]
        chars_per_token = float(part["counts"]["chars_per_token"])
        mean_tokens = chars / max(1, chunks) / chars_per_token
        return max(1, math.ceil(0.5 * mean_tokens))

    @property
    def is_exact(self) -> bool:
        """Whether negatives fill a token budget.

        Then only the last one of a sequence is cut.
        """
        is_extended = self.layout == schemas.Layout.EXTENDED
        return is_extended and self.setting("compose", "fit") == "exact"

    def is_embedded(self, shard: int) -> Bools:
        """Return whether each chunk of a shard was embedded.

        With a shortlist, only marked ones are.
        """
        if "shortlist" not in self.steps:
            return np.ones(len(self.chunks(shard)["start"]), np.bool_)
        marks = np.load(self.files("shortlist", ".shortlist.npy")[shard])
        return np.asarray(marks > 0)

    @cached_property
    def tokenizer(self) -> Tokenizer:
        """The reference tokenizer, from the run's own file."""
        from tokenizers import Tokenizer

        (path,) = self.files("tokenizer", ".tokenizer.json")
        try:
            tokenizer = Tokenizer.from_file(str(path))
        except Exception as error:  # a bare one for any damaged file
            raise ValueError(f"{path} is not a tokenizer.json: {error}") from None
        # A special token spelled out in a document is text.
        tokenizer.encode_special_tokens = True
        tokenizer.no_truncation()
        tokenizer.no_padding()
        return tokenizer

    @cached_property
    def reference(self) -> Reference:
        """The reference tokenizer, for chunks within their documents."""
        return Reference(self.tokenizer)

    @cached_property
    def special_ids(self) -> dict[int, list[int]]:
        """The ids of the recipe's separator, bos and eos, by role.

        Computed by the reference tokenizer.
        """
        separator = self.setting("compose", "separator", "")
        # A separator may be a special token.
        self.tokenizer.encode_special_tokens = False
        (separator_ids,) = self.reference.ids([separator], [False])
        ids_of = {SEPARATOR: separator_ids}
        self.tokenizer.encode_special_tokens = True
        for role, key in ((BOS, "bos"), (EOS, "eos")):
            token = self.setting("tokenizer", key, "")
            token_id = self.tokenizer.token_to_id(token)
            ids_of[role] = [] if token_id is None else [token_id]
        return ids_of

    @cached_property
    def shards(self) -> list[tuple[Path, Path]]:
        """DOCUMENTS and the used CHUNKS of each shard."""
        chunk_step = "decontaminate" if "decontaminate" in self.steps else "chunk"
        documents = self.files("ingest", ".documents.arrow")
        chunks = self.files(chunk_step, ".chunks.arrow")
        return list(zip(documents, chunks, strict=True))

    @cached_property
    def text_shards(self) -> list[tuple[Path, Path]]:
        """DOCUMENTS and CHUNKS of each shard, those of inserted tasks last."""
        documents = self.files("compose", ".documents.arrow")
        chunks = self.files("compose", ".chunks.arrow")
        return [*self.shards, *zip(documents, chunks, strict=True)]

    @cached_property
    def chunks(self) -> Callable[[int], _Columns]:
        """Return the CHUNKS of a shard by number, as arrays, shape (rows,)."""
        # A function that refers to `self` and is kept by it would keep all open files
        # until the garbage collector runs.
        paths = [chunks for _, chunks in self.text_shards]
        cached = lru_cache(maxsize=_CACHED_SHARDS)
        return cached(lambda shard: corpus_files.read_chunks(paths[shard]))

    def documents(
        self, shard: int, *names: str
    ) -> Iterator[tuple[int, pa.RecordBatch]]:
        """Yield (first row, batch) of a shard's DOCUMENTS.

        A batch has those of the named columns that exist.
        """
        path, _ = self.text_shards[shard]
        schema = pa.ipc.open_file(pa.memory_map(str(path))).schema
        indices = [schema.get_field_index(name) for name in names]
        options = pa.ipc.IpcReadOptions(
            included_fields=[index for index in indices if index >= 0]
        )
        yield from corpus_files.record_batches(path, options=options)

    def chunk_texts(
        self, shard: int, rows: Ids
    ) -> Iterator[tuple[Ids, Ids, list[str], list[bool]]]:
        """Yield (rows, document rows, texts, begins) of distinct ascending chunk rows.

        One batch of documents at a time. `begins` tells which chunks begin their
        document.
        """
        return corpus_files.iter_chunk_texts(*self.text_shards[shard], rows)

    def texts_of(self, ids: Ids) -> dict[int, str]:
        """Return the text of each chunk."""
        text_of: dict[int, str] = {}
        for shard, rows in self.by_shard(ids):
            for part, _, texts, _ in self.chunk_texts(shard, rows):
                part_ids = (part | (shard << SHARD_BITS)).tolist()
                text_of.update(zip(part_ids, texts, strict=True))
        return text_of

    def begins(self, chunk: int) -> bool:
        """Return whether a chunk begins its document."""
        shard = chunk >> SHARD_BITS
        row = chunk & ROW_MASK
        return bool(self.chunks(shard)["start"][row] == 0)

    def names_of(
        self, doc_ids: Ids, column: Literal["source", "source_id", "metadata"]
    ) -> dict[int, str]:
        """Return a column of the documents that exist, by id."""
        known = np.unique(doc_ids[self._has_shard(doc_ids)])
        if not len(known):
            return {}
        documents = [path for path, _ in self.text_shards]
        (values,) = corpus_files.document_columns(known, documents, (column,))
        return dict(zip(known.tolist(), values.tolist(), strict=True))

    def by_shard(self, ids: Ids) -> list[tuple[int, Ids]]:
        """Return (shard, ascending rows) of distinct ids.

        Ids of missing shards are skipped.
        """
        rows_by_shard, _ = corpus_files.by_shard(ids[self._has_shard(ids)])
        return rows_by_shard

    def _has_shard(self, ids: Ids) -> Bools:
        return (ids >= 0) & (ids >> SHARD_BITS < len(self.text_shards))

    def vectors_of(self, ids: Ids) -> Floats:
        """Return the stored vectors, shape (n, dimensions), of existing chunk ids."""
        if not len(ids):
            return np.empty((0, 0), np.float32)
        return corpus_files.vectors(ids, self.files("embed", ".vectors.npy"))

    def content_hashes(self, shard: int) -> Hashes:
        """Return the content hash of each document of a shard, memory-mapped.

        Keep no more than one: there may be more shards than allowed open files.
        """
        return corpus_files.opened(self._hash_files[shard])

    @cached_property
    def _hash_files(self) -> list[Path]:
        return self.files("ingest", ".hashes.npy") + self.files(
            "compose", ".hashes.npy"
        )

    def token_shard(self, shard: int) -> tuple[Ids, Ids, UInt32s]:
        """Return rows (n,), offsets (n + 1,) and ids of a shard's TOKENS.

        The arrays are memory-mapped.
        """
        rows, offsets, ids = map(corpus_files.opened, self._token_files[shard])
        return rows, offsets, ids

    def token_ids(self, shard: int, rows: Ids) -> list[UInt32s]:
        """Return the stored ids of each of these chunk rows, which must have tokens."""
        tokenized_rows, offsets, ids = self.token_shard(shard)
        indices = np.searchsorted(tokenized_rows, rows)
        # Copies, because each view would keep the file of its shard open.
        return [
            ids[offsets[index] : offsets[index + 1]].copy()
            for index in indices.tolist()
        ]

    @cached_property
    def _token_files(self) -> list[tuple[Path, Path, Path]]:
        found = [self.files(name, ".rows.npy") for name in self.steps]
        rows = next((files for files in found if files), [])
        rows += self.files("compose", ".rows.npy")
        offsets, ids = (
            self.files("tokens", suffix) + self.files("compose", suffix)
            for suffix in (".offsets.npy", ".ids.npy")
        )
        return list(zip(rows, offsets, ids, strict=True))

    def sequences(self) -> Iterator[ResolvedSequence]:
        return chain.from_iterable(self.blocks())

    def blocks(self, numbers: range | None = None) -> Iterator[list[ResolvedSequence]]:
        """Yield the sequences, or those with some numbers, in order.

        They are resolved in blocks of about four million tokens.
        """
        places = self._places()
        if numbers is not None:
            places = islice(places, numbers.start, numbers.stop)
        for block in self.blocks_of_rows([place] for place in places):
            yield [sequence for (sequence,) in block]

    def blocks_of_rows(
        self, rows: Iterable[Iterable[tuple[int, int]]]
    ) -> Iterator[list[list[ResolvedSequence]]]:
        """Yield the sequences of each row, in blocks as `blocks` does.

        A row names its sequences by SEQUENCES file and place in it.
        """
        block: list[list[StoredSequence]] = []
        block_tokens = 0
        for row in rows:
            sequences = [self._stored(part, place) for part, place in row]
            block.append(sequences)
            for sequence in sequences:
                if len(sequence.end):
                    block_tokens += int(sequence.end[-1])
            if block_tokens >= _BLOCK_TOKENS:
                yield self._resolved(block)
                block = []
                block_tokens = 0
        if block:
            yield self._resolved(block)

    def bare_sequences(self) -> Iterator[StoredSequence]:
        """Yield the sequences without columns of other data."""
        return (self._stored(part, place) for part, place in self._places())

    def _places(self) -> Iterator[tuple[int, int]]:
        """Yield the SEQUENCES file of each sequence, and its place in it."""
        for part, sequences in enumerate(self.sequences_per_part):
            for place in range(sequences):
                yield part, place

    def _stored(self, part: int, place: int) -> StoredSequence:
        """Return the sequence at a place of a SEQUENCES file.

        Each batch has one sequence.
        """
        batch = self._sequence_file(part).get_batch(place)
        if batch.num_rows != 1:
            found = f"a SEQUENCES file has {batch.num_rows} sequences in batch {place}"
            raise ValueError(f"{found}, expected one")
        lists = ("chunk_id", "role", "group", "token_start", "token_end", "score")
        columns = [
            batch.column(name)[0].values.to_numpy(zero_copy_only=False)
            for name in lists
        ]
        if len({len(column) for column in columns}) > 1:
            found = f"lists of different lengths in batch {place}"
            raise ValueError(f"a SEQUENCES file has {found}")
        names = ("sequence_id", "key", "method", "layout")
        values = [batch.column(name)[0].as_py() for name in names]
        # In the field order of StoredSequence.
        number = sum(self.sequences_per_part[:part]) + place
        return StoredSequence(number, *values, *columns)

    @cached_property
    def _sequence_file(self) -> Callable[[int], pa.RecordBatchFileReader]:
        paths = self.files("compose", ".sequences.arrow")
        recorded = len(self.sequences_per_part)
        if len(paths) != recorded:
            counts = f"the record counts those of {recorded}"
            raise ValueError(f"there are {len(paths)} SEQUENCES files, but {counts}")
        cached = lru_cache(maxsize=_CACHED_SHARDS)
        return cached(lambda part: pa.ipc.open_file(pa.memory_map(str(paths[part]))))

    def _resolved(
        self, rows: Sequence[Sequence[StoredSequence]]
    ) -> list[list[ResolvedSequence]]:
        """Return the sequences of rows with the columns of their chunks.

        Each shard is looked up once for the chunks of all sequences.
        """
        block = list(chain.from_iterable(rows))
        ids = np.concatenate([sequence.chunk for sequence in block])
        columns = self._columns_of(ids)
        # Split the columns, (spans,) of all sequences, into those of each sequence.
        cuts = np.cumsum([len(sequence.chunk) for sequence in block])[:-1]
        divided = [np.split(column, cuts) for column in columns.values()]
        resolved = []
        for sequence, *own_columns in zip(block, *divided, strict=True):
            # In the field order of ResolvedSequence.
            fields = vars(sequence).values()
            resolved.append(ResolvedSequence(*fields, *own_columns))
        in_order = iter(resolved)
        return [list(islice(in_order, len(row))) for row in rows]

    def _columns_of(self, ids: Ids) -> _Columns:
        """Return the columns of ResolvedSequence for the chunks of spans.

        Shape (spans,) each, of the spans of several sequences.
        UNKNOWN where a chunk, or its tokens, do not exist.
        """
        # In the field order of ResolvedSequence.
        names = ("doc", "doc_first", "doc_stop", "char_start", "char_end", "tokens")
        columns: _Columns = {}
        for name in names:
            columns[name] = np.full(len(ids), UNKNOWN, np.int64)
        columns["open_ended"] = np.zeros(len(ids), np.bool_)
        for shard, _ in self.by_shard(ids):
            table = self.chunks(shard)
            base = shard << SHARD_BITS
            # The spans with a chunk of this shard, and the rows of these chunks. Ids of
            # rows that do not exist stay UNKNOWN.
            is_here = (ids >= base) & (ids < base + len(table["start"]))
            spans = np.flatnonzero(is_here)
            rows = ids[spans] & ROW_MASK
            # The chunks of a document have consecutive rows.
            doc_rows = table["doc_row"]
            docs = doc_rows[rows].astype(np.int64)
            first_rows = np.searchsorted(doc_rows, docs, "left")
            stop_rows = np.searchsorted(doc_rows, docs, "right")
            columns["doc"][spans] = docs | base
            columns["doc_first"][spans] = first_rows + base
            columns["doc_stop"][spans] = stop_rows + base
            columns["char_start"][spans] = table["start"][rows]
            columns["char_end"][spans] = table["end"][rows]
            columns["open_ended"][spans] = table["separator"][rows]
            # Chunks that were not tokenized stay UNKNOWN.
            tokenized_rows, offsets = map(
                corpus_files.opened, self._token_files[shard][:2]
            )
            indices = np.searchsorted(tokenized_rows, rows)
            has_tokens = indices < len(tokenized_rows)
            found_rows = tokenized_rows[indices[has_tokens]]
            has_tokens[has_tokens] = found_rows == rows[has_tokens]
            firsts = indices[has_tokens]
            counts = offsets[firsts + 1] - offsets[firsts]
            columns["tokens"][spans[has_tokens]] = counts
        return columns

    def used_rows(self, selected: Bools | None = None) -> list[Bools]:
        """Return for each shard which chunk rows are used by sequences.

        By the `selected` ones, shape (sequences,), or by any.
        """
        used = [
            np.zeros(len(self.chunks(shard)["start"]), np.bool_)
            for shard in range(len(self.text_shards))
        ]
        for sequence in self.bare_sequences():
            if selected is not None and not selected[sequence.number]:
                continue
            for shard, rows in self.by_shard(sequence.chunk):
                is_used = used[shard]
                is_used[rows[rows < len(is_used)]] = True
        return used

    def name_marks(self, outcomes: list[CheckOutcome]) -> list[CheckOutcome]:
        """Replace placeholders in the examples of outcomes by names, in place.

        The placeholders are those of chunks and documents.
        """
        for outcome in outcomes:
            outcome.examples = [
                MARK.sub(self._name, example) for example in outcome.examples
            ]
        return outcomes

    def _name(self, mark: re.Match[str]) -> str:
        """Return `doc-17 · chunk 3` or `doc-17`; shard and row for an unknown id."""
        kind = mark[1]
        number = int(mark[2])
        if number < 0:
            return f"no {kind}"
        ids = np.array([number])
        try:
            if kind == "document":
                return self.names_of(ids, "source_id")[number]
            documents, chunks = zip(*self.text_shards, strict=True)
            names = corpus_files.chunk_names(ids, documents=documents, chunks=chunks)
            ((document, ordinal),) = names
            return f"{document} · chunk {ordinal}"
        except (OSError, ValueError, LookupError, TypeError, pa.ArrowException):
            shard = number >> SHARD_BITS
            row = number & ROW_MASK
            return f"unknown {kind} (shard {shard}, row {row:,})"
