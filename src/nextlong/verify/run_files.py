"""Run files: read a finished run from its files.

In:  a run directory, or one of its variants, RUN@NAME. Out: its manifests, columns by chunk id, and sequences. SEQUENCES and
TOKENS are read here instead of with the run's own code, because data that they refer to may be missing (docs/decisions/0019).
Ids are looked up shard by shard, so that memory holds the columns of a few shards and one block of sequences.
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
from numpy.typing import NDArray

from nextlong import schemas
from nextlong.artifacts import lookup, record
from nextlong.recipe.keys import NEGATIVES, NegativeChoice
from nextlong.schemas import (
    BOS,
    DOCUMENT,
    EOS,
    META,
    NEGATIVE,
    NO_CHUNK,
    ROLES,
    ROW_MASK,
    SEPARATOR,
    SHARD_BITS,
)
from nextlong.text import Json
from nextlong.verify.outcome import MARK, CheckOutcome, chunk_name
from nextlong.verify.reference import Reference

if TYPE_CHECKING:
    from tokenizers import Tokenizer

Ids = NDArray[np.int64]
_Columns = dict[str, NDArray[Any]]

UNKNOWN: Final = NO_CHUNK  # for missing values
_BLOCK_TOKENS: Final = 1 << 22
# Shards whose CHUNKS, about 2 MB each, stay in memory, because each block of sequences refers to nearly all shards.
_KEPT_SHARDS: Final = 64
_NO_MANIFEST: Final[Json] = {"parts": [], "inputs": {}, "fingerprint": ""}


@dataclass(frozen=True)
class StepFiles:
    """The folder and manifest of a step; `damage` describes why the manifest cannot be read."""

    name: str
    folder: Path
    manifest: Json
    damage: str = ""

    @property
    def entries(self) -> dict[str, Json]:
        """Size and hash of every file, by name."""
        return {
            name: entry
            for part in self.manifest["parts"]
            for name, entry in part["files"].items()
        }

    @property
    def is_export(self) -> bool:
        return {"format", "split"} <= set(self.manifest.get("config", {}))

    def files(self, suffix: str) -> list[Path]:
        """Return the files with the suffix, sorted by the numbers in their names."""
        names = [name for name in self.entries if name.endswith(suffix)]
        return [
            self.folder / name
            for name in sorted(
                names, key=lambda name: [*map(int, re.findall(r"\d+", name))]
            )
        ]


def _open_step(name: str, folder: Path) -> StepFiles:
    try:
        manifest = json.loads((folder / "manifest.json").read_text(encoding="utf-8"))
        if {"fingerprint", "inputs"} <= manifest.keys() and all(
            "files" in part for part in manifest["parts"]
        ):
            return StepFiles(name, folder, manifest)
        return StepFiles(name, folder, _NO_MANIFEST, "is not the manifest of a step")
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        return StepFiles(name, folder, _NO_MANIFEST, f"cannot be read ({error})")


@dataclass(frozen=True)
class _StoredSequence:
    """One sequence of SEQUENCES; all arrays have shape (spans,)."""

    number: int
    id: str
    key: int
    method: str
    layout: str
    chunk: Ids
    role: NDArray[np.int8]
    group: NDArray[np.int32]
    start: NDArray[np.int32]
    end: NDArray[np.int32]
    score: NDArray[np.float32]

    @property
    def key_spans(self) -> Ids:
        """The spans of its meta-document or of its documents."""
        return np.flatnonzero(np.isin(self.role, (META, DOCUMENT)))


@dataclass(frozen=True)
class ResolvedSequence(_StoredSequence):
    """One sequence with columns of CHUNKS and TOKENS; UNKNOWN for a span without a chunk, or with a missing one."""

    doc: Ids
    doc_first: Ids  # the document's chunks are [doc_first, doc_stop)
    doc_stop: Ids
    char_start: Ids
    char_end: Ids
    tokens: Ids  # of the whole chunk
    open_ended: NDArray[np.bool_]  # the chunk does not end in a newline

    @cached_property
    def lengths(self) -> NDArray[np.int32]:
        return self.end - self.start

    @cached_property
    def is_chunk(self) -> NDArray[np.bool_]:
        return np.isin(self.role, (META, NEGATIVE, DOCUMENT))

    @cached_property
    def is_truncated(self) -> NDArray[np.bool_]:
        """The spans that hold only the beginning of a chunk."""
        return self.is_chunk & (self.lengths < self.tokens)

    def known(self, role: int) -> Ids:
        """Return the spans of a role whose chunks exist."""
        return np.flatnonzero((self.role == role) & (self.doc != UNKNOWN))

    def where(self, span: int) -> str:
        role = (
            ROLES[self.role[span]]
            if 0 <= self.role[span] < len(ROLES)
            else f"role {self.role[span]}"
        )
        chunk = (
            f" {chunk_name(self.chunk[span])}" if self.chunk[span] != NO_CHUNK else ""
        )
        return f"sequence {self.number} span {span} ({role}{chunk}, tokens {self.start[span]}–{self.end[span]})"


class StoredRun:
    """A finished run, read from its files."""

    def __init__(self, named: Path, *, sample: int = 100, seed: int = 0) -> None:
        """Read the record and manifests; `sample` and `seed` draw random samples. Raises RunError without a finished run."""
        variant = record.find(named)
        self.path, self.recipe, self.takes = (
            variant.run_dir,
            variant.recipe,
            variant.sequences_per_part,
        )
        self.steps = {
            name: _open_step(name, self.path / folder)
            for name, folder in variant.steps.items()
        }
        self.method = str(self.setting("compose", "method", "nextlong"))
        self.sample, self.seed = sample, seed

    def files(self, step: str, suffix: str) -> list[Path]:
        return self.steps[step].files(suffix) if step in self.steps else []

    @cached_property
    def all_steps(self) -> list[StepFiles]:
        """All finished steps of the run directory, including other variants and mixes, sorted by folder."""
        folders = sorted(
            path.parent for path in self.path.glob("[0-9][0-9]-*/manifest.json")
        )
        return [_open_step(folder.name, folder) for folder in folders]

    @cached_property
    def rows(self) -> dict[str, StepFiles]:
        """The steps that arranged the sequences of this data set alone into rows, by fingerprint.

        Steps from which the record's exports were made come first, readable or not.
        """
        rows = {
            step.manifest["fingerprint"]: step
            for name, step in self.steps.items()
            if name == "rows"
        }
        for fingerprint in [
            step.manifest["inputs"].get("rows") for step in self.steps.values()
        ]:
            if fingerprint is not None and fingerprint not in rows:
                rows[fingerprint] = self.open_rows(fingerprint)
        composed = (
            self.steps["compose"].manifest["fingerprint"]
            if "compose" in self.steps
            else ""
        )
        for step in self.all_steps:
            config = step.manifest.get("config", {})
            is_ours = step.manifest["inputs"].get(
                "compose"
            ) == composed and not config.get("others")
            if is_ours and config.get("sequences") == [
                self.setting("compose", "sequences")
            ]:
                rows[step.manifest["fingerprint"]] = step
        return rows

    def open_rows(self, fingerprint: str) -> StepFiles:
        """Return the rows step with this fingerprint, with `damage` if there is none."""
        folders = sorted(self.path.glob(f"*-rows-{fingerprint}"))
        return _open_step(
            "rows", folders[0] if folders else self.path / f"rows-{fingerprint}"
        )

    @cached_property
    def earlier_exports(self) -> list[StepFiles]:
        """The exports of the same sequences that are not in the record."""
        recorded = {step.folder for step in self.steps.values()}
        others = (
            step
            for step in self.all_steps
            if step.is_export and step.folder not in recorded
        )
        return [
            step for step in others if step.manifest["inputs"].get("rows") in self.rows
        ]

    def setting(self, section: str, key: str, default: Any = None) -> Any:
        """Return the value of a recipe key; the default if it is null or missing."""
        value = (self.recipe.get(section) or {}).get(key)
        return default if value is None else value

    @property
    def layout(self) -> str:
        """How the documents of a sequence are arranged, as declared by the draft step."""
        return str(self.steps["draft"].manifest["config"]["layout"])

    @property
    def negatives(self) -> NegativeChoice:
        return NEGATIVES[self.setting("compose", "negatives", "top")]

    @cached_property
    def extra_tokens(self) -> int:
        """The tokens that an export needs in addition to `compose.target_tokens`."""
        return max(
            (
                step.manifest.get("config", {}).get("extra_tokens", 0)
                for step in self.steps.values()
            ),
            default=0,
        )

    @cached_property
    def min_gap_tokens(self) -> int:
        """The recipe's `compose.min_gap_tokens`; auto: half the tokens of a mean chunk, counted from CHUNKS."""
        setting = self.setting("compose", "min_gap_tokens", "auto")
        if setting != "auto":
            return int(setting)
        sizes = [
            table["end"] - table["start"]
            for table in map(self.chunks, range(len(self.shards)))
        ]
        chars, chunks = (
            sum(int(of_shard.sum()) for of_shard in sizes),
            sum(map(len, sizes)),
        )
        (part,) = self.steps["tokenizer"].manifest["parts"]
        return max(
            1,
            math.ceil(
                0.5
                * (chars / max(1, chunks) / float(part["counts"]["chars_per_token"]))
            ),
        )

    @property
    def is_exact(self) -> bool:
        """Whether negatives fill a token budget, and only the last one of a sequence is cut."""
        return (
            self.layout == schemas.Layout.EXTENDED
            and self.setting("compose", "fit") == "exact"
        )

    def is_embedded(self, shard: int) -> NDArray[np.bool_]:
        """Return whether each chunk of a shard was embedded; with a shortlist, only marked ones are."""
        if "shortlist" not in self.steps:
            return np.ones(len(self.chunks(shard)["start"]), np.bool_)
        return np.asarray(np.load(self.files("shortlist", ".shortlist.npy")[shard]) > 0)

    @cached_property
    def tokenizer(self) -> Tokenizer:
        """The reference tokenizer, from the run's own file."""
        from tokenizers import Tokenizer

        (path,) = self.files("tokenizer", ".tokenizer.json")
        try:
            tokenizer = Tokenizer.from_file(str(path))
        except (
            Exception
        ) as error:  # the library raises a bare Exception for any damaged file
            raise ValueError(f"{path} is not a tokenizer.json: {error}") from None
        tokenizer.encode_special_tokens = (
            True  # a special token spelled out in a document is text
        )
        tokenizer.no_truncation()
        tokenizer.no_padding()
        return tokenizer

    @cached_property
    def reference(self) -> Reference:
        """The reference tokenizer, for chunks within their documents."""
        return Reference(self.tokenizer)

    @cached_property
    def special_ids(self) -> dict[int, list[int]]:
        """The ids of separator, bos and eos, computed by the reference tokenizer from the recipe."""
        separator = self.setting("compose", "separator", "")
        # A separator may be a special token.
        self.tokenizer.encode_special_tokens = False
        (separator_ids,) = self.reference.ids([separator], [False])
        ids_of = {SEPARATOR: separator_ids}
        self.tokenizer.encode_special_tokens = True
        for role, key in ((BOS, "bos"), (EOS, "eos")):
            known = self.tokenizer.token_to_id(self.setting("tokenizer", key, ""))
            ids_of[role] = [] if known is None else [known]
        return ids_of

    @cached_property
    def shards(self) -> list[tuple[Path, Path]]:
        """DOCUMENTS and the used CHUNKS of each shard."""
        chunks = self.files(
            "decontaminate" if "decontaminate" in self.steps else "chunk",
            ".chunks.arrow",
        )
        return list(zip(self.files("ingest", ".documents.arrow"), chunks, strict=True))

    @cached_property
    def chunks(self) -> Callable[[int], _Columns]:
        """Return the CHUNKS of a shard by number, as arrays, shape (rows,)."""
        # A function that refers to `self` and is kept by it would keep all open files until
        # the garbage collector runs.
        paths = [chunks for _, chunks in self.shards]
        return lru_cache(maxsize=_KEPT_SHARDS)(
            lambda shard: lookup.read_chunks(paths[shard])
        )

    def documents(
        self, shard: int, *names: str
    ) -> Iterator[tuple[int, pa.RecordBatch]]:
        """Yield (first row, batch) of a shard's DOCUMENTS with those of the named columns that exist."""
        path, _ = self.shards[shard]
        places = map(
            pa.ipc.open_file(pa.memory_map(str(path))).schema.get_field_index, names
        )
        options = pa.ipc.IpcReadOptions(
            included_fields=[place for place in places if place >= 0]
        )
        yield from lookup.record_batches(path, options=options)

    def chunk_texts(
        self, shard: int, rows: Ids
    ) -> Iterator[tuple[Ids, Ids, list[str], list[bool]]]:
        """Yield (rows, document rows, texts, begins) of distinct ascending chunk rows, one batch of documents at a time.

        `begins` tells which chunks begin their document.
        """
        return lookup.iter_chunk_texts(*self.shards[shard], rows)

    def texts_of(self, ids: Ids) -> dict[int, str]:
        text_of: dict[int, str] = {}
        for shard, rows in self.by_shard(ids):
            for part, _, texts, _ in self.chunk_texts(shard, rows):
                text_of.update(
                    zip((part | (shard << SHARD_BITS)).tolist(), texts, strict=True)
                )
        return text_of

    def begins(self, chunk: int) -> bool:
        """Return whether a chunk begins its document."""
        row = chunk & ((1 << SHARD_BITS) - 1)
        return bool(self.chunks(chunk >> SHARD_BITS)["start"][row] == 0)

    def names_of(
        self, doc_ids: Ids, column: Literal["source", "source_id", "metadata"]
    ) -> dict[int, str]:
        known = np.unique(
            doc_ids[(doc_ids >= 0) & (doc_ids >> SHARD_BITS < len(self.shards))]
        )
        documents = [path for path, _ in self.shards]
        columns = (
            lookup.document_columns(known, documents, (column,))
            if len(known)
            else [known]
        )
        return dict(zip(known.tolist(), columns[0].tolist(), strict=True))

    def by_shard(self, ids: Ids) -> list[tuple[int, Ids]]:
        """Return (shard, ascending rows) of distinct ids; ids of missing shards are skipped."""
        return lookup.by_shard(
            ids[(ids >= 0) & (ids >> SHARD_BITS < len(self.shards))]
        )[0]

    def vectors_of(self, ids: Ids) -> NDArray[np.float32]:
        """Return the stored vectors, shape (n, dimensions), of existing chunk ids."""
        return (
            lookup.vectors(ids, self.files("embed", ".vectors.npy"))
            if len(ids)
            else np.empty((0, 0), np.float32)
        )

    def content_hashes(self, shard: int) -> NDArray[np.uint64]:
        """Return the content hash of each document of a shard, memory-mapped.

        Keep no more than one: there may be more shards than allowed open files.
        """
        return lookup.opened(self._hash_files[shard])

    @cached_property
    def _hash_files(self) -> list[Path]:
        return self.files("ingest", ".hashes.npy")

    def token_shard(self, shard: int) -> tuple[Ids, Ids, NDArray[np.uint32]]:
        """Return rows (n,), offsets (n + 1,) and ids of a shard's TOKENS, memory-mapped."""
        rows, offsets, ids = map(lookup.opened, self._token_files[shard])
        return rows, offsets, ids

    def token_ids(self, shard: int, rows: Ids) -> list[NDArray[np.uint32]]:
        """Return the stored ids of each of these chunk rows, which must have tokens."""
        named, offsets, ids = self.token_shard(shard)
        # Copies, because each view would keep the file of its shard open.
        return [
            ids[offsets[at] : offsets[at + 1]].copy()
            for at in np.searchsorted(named, rows).tolist()
        ]

    @cached_property
    def _token_files(self) -> list[tuple[Path, Path, Path]]:
        rows = next(
            (found for name in self.steps if (found := self.files(name, ".rows.npy"))),
            [],
        )
        offsets, ids = (
            self.files("tokens", f".{kind}.npy") for kind in ("offsets", "ids")
        )
        return list(zip(rows, offsets, ids, strict=True))

    def sequences(self) -> Iterator[ResolvedSequence]:
        return chain.from_iterable(self.blocks())

    def blocks(self, numbers: range | None = None) -> Iterator[list[ResolvedSequence]]:
        """Yield the sequences, or those with some numbers, in order, in resolved blocks of about four million tokens."""
        places = (
            self._places()
            if numbers is None
            else islice(self._places(), numbers.start, numbers.stop)
        )
        for block in self.blocks_of_rows([place] for place in places):
            yield [sequence for (sequence,) in block]

    def blocks_of_rows(
        self, rows: Iterable[Iterable[tuple[int, int]]]
    ) -> Iterator[list[list[ResolvedSequence]]]:
        """Yield the sequences of each row, given by SEQUENCES file and place, in blocks as `blocks` does."""
        block: list[list[_StoredSequence]] = []
        held = 0
        for row in rows:
            block.append([self._stored(*place) for place in row])
            held += sum(
                int(sequence.end[-1]) for sequence in block[-1] if len(sequence.end)
            )
            if held >= _BLOCK_TOKENS:
                yield self._resolved(block)
                block, held = [], 0
        if block:
            yield self._resolved(block)

    def bare_sequences(self) -> Iterator[_StoredSequence]:
        return (self._stored(*place) for place in self._places())

    def _places(self) -> Iterator[tuple[int, int]]:
        return (
            (part, place)
            for part, take in enumerate(self.takes)
            for place in range(take)
        )

    def _stored(self, part: int, place: int) -> _StoredSequence:
        """Return the sequence at a place of a SEQUENCES file; each batch has one sequence."""
        batch = self._sequence_file(part).get_batch(place)
        if batch.num_rows != 1:
            raise ValueError(
                f"a SEQUENCES file has {batch.num_rows} sequences in batch {place}, expected one"
            )
        lists = ("chunk_id", "role", "group", "token_start", "token_end", "score")
        columns = [
            batch.column(name)[0].values.to_numpy(zero_copy_only=False)
            for name in lists
        ]
        if len(set(map(len, columns))) > 1:
            raise ValueError(
                f"a SEQUENCES file has lists of different lengths in batch {place}"
            )
        names = [
            batch.column(name)[0].as_py()
            for name in ("sequence_id", "key", "method", "layout")
        ]
        return _StoredSequence(sum(self.takes[:part]) + place, *names, *columns)

    @cached_property
    def _sequence_file(self) -> Callable[[int], pa.RecordBatchFileReader]:
        paths = self.files("compose", ".sequences.arrow")
        if len(paths) != len(self.takes):
            recorded = f"the record counts those of {len(self.takes)}"
            raise ValueError(f"there are {len(paths)} SEQUENCES files, but {recorded}")
        return lru_cache(maxsize=_KEPT_SHARDS)(
            lambda part: pa.ipc.open_file(pa.memory_map(str(paths[part])))
        )

    def _resolved(
        self, rows: Sequence[Sequence[_StoredSequence]]
    ) -> list[list[ResolvedSequence]]:
        block = list(chain.from_iterable(rows))
        ids = np.concatenate([sequence.chunk for sequence in block])
        # In the field order of ResolvedSequence.
        names = ("doc", "doc_first", "doc_stop", "char_start", "char_end", "tokens")
        columns: _Columns = {
            name: np.full(len(ids), UNKNOWN, np.int64) for name in names
        }
        columns["open_ended"] = np.zeros(len(ids), np.bool_)
        for shard, _ in self.by_shard(ids):
            table, base = self.chunks(shard), shard << SHARD_BITS
            # `places` are the spans of this shard's chunks, `chunk_rows` these chunks.
            places = np.flatnonzero((ids >= base) & (ids < base + len(table["start"])))
            chunk_rows = ids[places] & ROW_MASK
            docs = table["doc_row"][chunk_rows].astype(np.int64)
            columns["doc"][places] = docs | base
            columns["doc_first"][places] = (
                np.searchsorted(table["doc_row"], docs, "left") + base
            )
            columns["doc_stop"][places] = (
                np.searchsorted(table["doc_row"], docs, "right") + base
            )
            for name, of_chunks in (
                ("char_start", "start"),
                ("char_end", "end"),
                ("open_ended", "separator"),
            ):
                columns[name][places] = table[of_chunks][chunk_rows]
            # `named` are the tokenized chunk rows, sorted; other rows stay UNKNOWN.
            named, offsets = map(lookup.opened, self._token_files[shard][:2])
            at = np.searchsorted(named, chunk_rows)
            is_named = at < len(named)
            is_named[is_named] = named[at[is_named]] == chunk_rows[is_named]
            columns["tokens"][places[is_named]] = (
                offsets[at[is_named] + 1] - offsets[at[is_named]]
            )
        # Split the columns, (spans,) of all sequences, into those of each sequence.
        cuts = np.cumsum([len(sequence.chunk) for sequence in block])[:-1]
        divided = zip(
            *(np.split(column, cuts) for column in columns.values()), strict=True
        )
        found = (
            ResolvedSequence(*vars(of).values(), *known)
            for of, known in zip(block, divided, strict=True)
        )
        return [[next(found) for _ in row] for row in rows]

    def used_rows(
        self, selected: NDArray[np.bool_] | None = None
    ) -> list[NDArray[np.bool_]]:
        """Return for each shard which chunk rows are used by the `selected` sequences, shape (sequences,), or by any."""
        used = [
            np.zeros(len(self.chunks(shard)["start"]), np.bool_)
            for shard in range(len(self.shards))
        ]
        for sequence in self.bare_sequences():
            if selected is not None and not selected[sequence.number]:
                continue
            for shard, rows in self.by_shard(sequence.chunk):
                used[shard][rows[rows < len(used[shard])]] = True
        return used

    def name_marks(self, outcomes: list[CheckOutcome]) -> list[CheckOutcome]:
        """Replace the placeholders of chunks and documents in the examples of outcomes by names, in place."""
        for outcome in outcomes:
            outcome.examples = [
                MARK.sub(self._name, example) for example in outcome.examples
            ]
        return outcomes

    def _name(self, mark: re.Match[str]) -> str:
        """Return `doc-17 · chunk 3` or `doc-17`; shard and row for an unknown id."""
        kind, number = mark[1], int(mark[2])
        if number < 0:
            return f"no {kind}"
        try:
            if kind == "document":
                return self.names_of(np.array([number]), "source_id")[number]
            documents, chunks = zip(*self.shards, strict=True)
            ((document, ordinal),) = lookup.chunk_names(
                np.array([number]), documents=documents, chunks=chunks
            )
            return f"{document} · chunk {ordinal}"
        except (OSError, ValueError, LookupError, TypeError, pa.ArrowException):
            return f"unknown {kind} (shard {number >> SHARD_BITS}, row {number & ROW_MASK:,})"
