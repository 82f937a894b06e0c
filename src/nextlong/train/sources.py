"""Sources: where the rows of a training come from.

In:  finished runs (nothing is exported), exported Parquet, or conversations.
Out: `TrainingRows` of one side of the split into training and validation.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray
from transformers import PreTrainedTokenizerBase

from nextlong.arrays import Bools, Ints
from nextlong.artifacts.rows import SPANS
from nextlong.errors import CorpusError, RecipeError, TokenizerError
from nextlong.rng import keyed_hash, threshold_for
from nextlong.schemas import META, ROLES
from nextlong.torch import SequenceDataset
from nextlong.train.conversations import read_conversations, render
from nextlong.train.loss import IGNORED
from nextlong.train.recipe import Data
from nextlong.train.rows import SourceRow, TrainingRows

_PARQUET_FIX: Final = "name files of `nextlong export --to parquet`"
_READ: Final = ("input_ids", "spans", "attention_mask", "labels")
# Columns in which other tools say what is predicted, and where sequences begin.
_OTHER_TARGETS: Final = frozenset({"assistant_masks", "completion_mask", "loss_mask"})
_OTHER_BORDERS: Final = frozenset(
    {"cu_seqlens", "document_ids", "position_ids", "segment_ids"}
)


def rows_of(
    data: Data, *, split: str, tokenizer: PreTrainedTokenizerBase | None
) -> TrainingRows:
    """Return the rows of one side of the split. Only conversations need `tokenizer`."""
    if data.runs:
        return _run_rows(data, split=split)
    if data.chat:
        return _chat_rows(data, split=split, tokenizer=tokenizer)
    return _parquet_rows(data, split=split)


def _is_on_side(numbers: Ints, data: Data, *, split: str) -> Bools:
    """Return which of the numbered rows or conversations are on a side of the split.

    They are sampled by keyed hash.
    """
    keys = keyed_hash(
        numbers.astype(np.uint64), seed=data.split_seed, stage="validation"
    )
    is_held_out: Bools = keys < threshold_for(data.validation)
    return is_held_out if split == "validation" else ~is_held_out


def _run_rows(data: Data, *, split: str) -> TrainingRows:
    """Return the rows of finished runs with spans, in `SequenceDataset`'s order."""
    # The order and the rows are those of an export with the same settings.
    options: dict[str, Any] = {"mix": data.mix, "by": data.by, "pack": data.pack}
    # Without a split, every sequence is trained on, and its options must not be given.
    if data.validation:
        options |= {
            "split": split,
            "validation": data.validation,
            "shared_chunks": data.shared_chunks,
            "split_seed": data.split_seed,
        }
    dataset = SequenceDataset(
        data.runs, columns=("input_ids", "seq_lengths"), **options
    )
    stored = dataset.rows
    lengths = np.unique(stored.index["length"])
    if data.pack is None and len(lengths) > 1:
        raise RecipeError(
            where="data.runs",
            problem=f"it mixes sequences of {lengths[0]:,} to {lengths[-1]:,} tokens, "
            "so rows would differ in length",
            fix=f"set data.pack={lengths[-1]}, which puts several short ones into a "
            "row",
        )

    def read(row: int) -> SourceRow:
        tensors = dataset[row]
        return SourceRow(
            ids=tensors["input_ids"].numpy(),
            lengths=tensors["seq_lengths"].numpy(),
            spans=stored.spans(row),
        )

    row_tokens = max(int(stored.lengths(row).sum()) for row in range(len(stored)))
    return TrainingRows(
        count=len(stored),
        row_tokens=row_tokens,
        sequence_tokens=stored.longest,
        fingerprint=stored.fingerprint,
        read=read,
    )


class _ParquetRow(NamedTuple):
    """Where a row is: file, row group, number in it; and its sequences' lengths."""

    path: Path
    group: int
    number: int
    lengths: Ints

    @property
    def where(self) -> str:
        """The row, as errors name it."""
        return f"data.parquet: {self.path}: row {self.number} of row group {self.group}"

    @property
    def tokens(self) -> int:
        """Tokens of all sequences."""
        return int(self.lengths.sum())


def _parquet_rows(data: Data, *, split: str) -> TrainingRows:
    """Return the rows of Parquet files, written here or by others.

    They have a column `input_ids` and, optionally, `seq_lengths`, `spans`, `labels`
    (not shifted, −100 where nothing is to be predicted) and `attention_mask` (0:
    padding at the end). Rows are in the order of the files' names. A row group is read
    when one of its rows is requested, and kept for the next row. Validation rows are
    sampled by keyed hash of the row's number.
    """
    stored: list[_ParquetRow] = []
    # Of the files' metadata (offsets and statistics of all columns), and of which rows
    # are read.
    fingerprint = hashlib.blake2b(digest_size=8)
    for path in _parquet_files(data):
        stored += _rows_in(path)
        fingerprint.update(repr(pq.read_metadata(path).to_dict()).encode())
    numbers = np.flatnonzero(_is_on_side(np.arange(len(stored)), data, split=split))
    if not len(numbers):
        raise CorpusError(
            where="data.parquet",
            problem=f"it has no row for {split}",
            fix="change data.validation, or export more rows",
        )
    fingerprint.update(numbers.tobytes())
    rows = [stored[number] for number in numbers.tolist()]
    tokens = sorted({row.tokens for row in rows})
    if len(tokens) > 1:
        raise RecipeError(
            where="data.parquet",
            problem=f"it mixes rows of {tokens[0]:,} and {tokens[-1]:,} tokens",
            fix="name exports whose rows have one length, or name the runs under "
            "data.runs with data.pack",
        )

    @lru_cache(maxsize=1)
    def table_of(path: Path, group: int) -> pa.Table:
        reader = pq.ParquetFile(path)
        names = [name for name in _READ if name in reader.schema_arrow.names]
        return reader.read_row_group(group, columns=names).combine_chunks()

    def read(row: int) -> SourceRow:
        parquet_row = rows[row]
        return _source_row(table_of(parquet_row.path, parquet_row.group), parquet_row)

    return TrainingRows(
        count=len(rows),
        row_tokens=tokens[0],
        sequence_tokens=max(int(row.lengths.max()) for row in rows),
        fingerprint=fingerprint.hexdigest(),
        read=read,
    )


def _parquet_files(data: Data) -> Iterator[Path]:
    """Yield the named files, and those of the named folders. Raises RecipeError."""
    for name in data.parquet:
        path = Path(name).expanduser()
        files = [path] if path.is_file() else sorted(path.rglob("*.parquet"))
        if not files:
            raise RecipeError(
                where="data.parquet",
                problem=f"{path} holds no .parquet file",
                fix="name files or a folder of them",
            )
        yield from files


def _source_row(table: pa.Table, row: _ParquetRow) -> SourceRow:
    """Return a row of the table of its row group. Raises RecipeError."""
    values = table.column("input_ids")[row.number].values
    ids = values.to_numpy().astype(np.int64)
    if row.tokens != len(ids):
        raise RecipeError(
            where=row.where,
            problem=f"its seq_lengths add up to {row.tokens:,} tokens, not "
            f"{len(ids):,}",
            fix=_PARQUET_FIX,
        )
    is_target = _targets_in(table, row, ids=ids)
    if "spans" not in table.column_names:
        return SourceRow(ids, row.lengths, is_target=is_target)
    row_spans = table.column("spans")[row.number].as_py()
    unknown = {span["role"] for span in row_spans} - set(ROLES)
    if unknown:
        raise RecipeError(
            where=f"data.parquet: {row.path}",
            problem=f"it has spans of role {min(unknown)!r}; known are "
            f"{', '.join(ROLES)}",
            fix=_PARQUET_FIX,
        )
    return SourceRow(
        ids=ids,
        lengths=row.lengths,
        spans=_spans_of(row_spans, row.lengths),
        is_target=is_target,
    )


def _targets_in(table: pa.Table, row: _ParquetRow, *, ids: Ints) -> Bools | None:
    """Return which tokens (T,) of a row are to be predicted; None: all.

    Padding at the end needs no attention mask: causal attention never reads it. Raises
    RecipeError for other padding, and for labels of other tokens.
    """
    attention_mask = _values_per_id(table, row, "attention_mask", tokens=len(ids))
    labels = _values_per_id(table, row, "labels", tokens=len(ids))
    if attention_mask is None and labels is None:
        return None
    is_target = np.ones(len(ids), bool)
    if attention_mask is not None:
        is_target = attention_mask != 0
        is_padded_before = (is_target[1:] & ~is_target[:-1]).any()
        if is_padded_before:
            raise RecipeError(
                where=row.where,
                problem="it has attention_mask 0 before tokens",
                fix="remove the padding, or move it to the end of the row",
            )
    if labels is not None:
        has_label = labels != IGNORED
        differing = np.flatnonzero(has_label & (labels != ids))
        if len(differing):
            first = int(differing[0])
            raise RecipeError(
                where=row.where,
                problem=f"it has the label {labels[first]} for the id {ids[first]} at "
                f"token {first}",
                fix="write labels that are not shifted, −100 where none is predicted",
            )
        is_target &= has_label
    return is_target


def _values_per_id(
    table: pa.Table, row: _ParquetRow, name: str, *, tokens: int
) -> Ints | None:
    """Return a row of a column with a value for each of its ids; None without it."""
    if name not in table.column_names:
        return None
    values = table.column(name)[row.number].values
    if values is None or len(values) != tokens or values.null_count:
        raise RecipeError(
            where=row.where,
            problem=f"it needs a value of {name} for each of its {tokens:,} ids",
            fix=_PARQUET_FIX,
        )
    numbers: Ints = values.cast(pa.int64()).to_numpy()
    return numbers


def _spans_of(
    row_spans: Sequence[Mapping[str, Any]], lengths: Ints
) -> NDArray[np.void]:
    """Return the SPANS of an exported row.

    One element per span, in the order of the row, with tokens counted from its start.
    """
    spans = np.zeros(len(row_spans), SPANS)
    spans["chunk_id"] = [span["chunk_id"] for span in row_spans]
    spans["first"] = [span["token_start"] for span in row_spans]
    spans["last"] = [span["token_end"] for span in row_spans]
    spans["role"] = [ROLES.index(span["role"]) for span in row_spans]
    ends = np.cumsum(lengths)
    spans["sequence"] = np.searchsorted(ends, spans["first"], side="right")
    # `group` numbers the meta-chunks that negatives follow, or the original documents
    # of a concatenation.
    starts_group = spans["role"] == META
    if not starts_group.any():
        documents = np.array([span["doc_id"] for span in row_spans])
        starts_group = np.ones(len(documents), bool)
        starts_group[1:] = documents[1:] != documents[:-1]
    spans["group"] = np.cumsum(starts_group) - 1
    return spans


def _rows_in(path: Path) -> Iterator[_ParquetRow]:
    """Yield the rows of a file. Raises RecipeError where they cannot be trained on."""
    try:
        file = pq.ParquetFile(path)
    except (pa.ArrowException, OSError) as error:
        raise RecipeError(
            where=f"data.parquet: {path}",
            problem=f"it cannot be read as Parquet ({str(error).split('.')[0]})",
            fix=_PARQUET_FIX,
        ) from None
    _check_columns(path, file)
    # Without lengths, a row is one sequence.
    has_lengths = "seq_lengths" in file.schema_arrow.names
    # Lists of lengths are short; ids are read only where there are none.
    read = "seq_lengths" if has_lengths else "input_ids"
    for group in range(file.num_row_groups):
        _check_ids(path, file, group)
        (column,) = file.read_row_group(group, columns=[read]).columns
        for index, listed in enumerate(column):
            if not listed.is_valid or not len(listed):
                raise RecipeError(
                    where=f"data.parquet: {path}: row {index} of row group {group}",
                    problem="it holds no tokens",
                    fix="remove the row, or export again",
                )
            lengths = np.array([len(listed)])
            if has_lengths:
                lengths = listed.values.to_numpy()
            yield _ParquetRow(
                path=path,
                group=group,
                number=index,
                lengths=lengths.astype(np.int64),
            )


def _check_columns(path: Path, file: pq.ParquetFile) -> None:
    """Raise RecipeError for columns that are missing, of another type, or not read."""
    where = f"data.parquet: {path}"
    names = file.schema_arrow.names
    if "input_ids" not in names:
        raise RecipeError(
            where=where, problem="it has no column input_ids", fix=_PARQUET_FIX
        )
    kind = file.schema_arrow.field("input_ids").type
    if not pa.types.is_integer(getattr(kind, "value_type", pa.null())):
        raise RecipeError(
            where=where,
            problem=f"its input_ids holds {kind}, not lists of token ids",
            fix=_PARQUET_FIX,
        )
    if "seq_lengths_padded" in names:
        raise RecipeError(
            where=where,
            problem="it has padded documents, which this trainer does not need",
            fix="export it without export.pad_documents_to",
        )
    targets = _OTHER_TARGETS.intersection(names)
    if targets:
        raise RecipeError(
            where=where,
            problem=f"it has the column {min(targets)}, which is not read",
            fix="write −100 into a column labels where nothing is to be predicted",
        )
    borders = _OTHER_BORDERS.intersection(names)
    if borders and "seq_lengths" not in names:
        raise RecipeError(
            where=where,
            problem=f"it has the column {min(borders)}, which is not read",
            fix="write the lengths of each row's sequences into a column seq_lengths",
        )


def _check_ids(path: Path, file: pq.ParquetFile, group: int) -> None:
    """Raise RecipeError for the first row of a row group with a null or a negative id.

    Its statistics tell whether there is one, so that whole data are not read.
    """
    metadata = file.metadata.row_group(group)
    for number in range(metadata.num_columns):
        column = metadata.column(number)
        if column.path_in_schema.startswith("input_ids."):
            known = column.statistics
            has_all = known is not None and known.has_min_max and known.has_null_count
            if has_all and known.min >= 0 and known.null_count == 0:
                return
    (column,) = file.read_row_group(group, columns=["input_ids"]).columns
    for index, row in enumerate(column):
        values = row.values
        if values is None or not len(values):
            continue
        ids = values.cast(pa.int64()).fill_null(-1).to_numpy()
        is_bad = ids < 0
        if is_bad.any():
            token = int(np.argmax(is_bad))
            is_null = values[token].as_py() is None
            named = "null" if is_null else f"the id {ids[token]}"
            raise RecipeError(
                where=f"data.parquet: {path}: row {index} of row group {group}",
                problem=f"it holds {named} at token {token}",
                fix="remove the row, or export again",
            )


def _chat_rows(
    data: Data, *, split: str, tokenizer: PreTrainedTokenizerBase | None
) -> TrainingRows:
    """Return conversations in rows of at most `data.pack` tokens, in order.

    They are rendered by the tokenizer's chat template; the answers alone are to be
    predicted.
    """
    assert data.chat is not None, "the recipe names it"
    assert data.pack is not None, "the recipe requires it"
    if tokenizer is None or not getattr(tokenizer, "chat_template", None):
        raise TokenizerError(
            where="data.chat",
            problem="it needs a chat template, and the model's tokenizer has none",
            fix="use a model that has one",
        )
    rows: list[list[tuple[Ints, Bools]]] = [[]]
    free_tokens = data.pack
    dropped = 0
    fingerprint = hashlib.blake2b(digest_size=8)
    conversations = read_conversations(Path(data.chat).expanduser())
    for number, conversation in enumerate(conversations):
        if not _is_on_side(np.array([number]), data, split=split)[0]:
            continue
        ids, is_answer = render(conversation, tokenizer)
        if len(ids) > data.pack:
            dropped += 1
            continue
        # Next fit in file order: conversations stay whole, and the order of rows is
        # that of the file.
        if len(ids) > free_tokens:
            rows.append([])
            free_tokens = data.pack
        rows[-1].append((ids, is_answer))
        fingerprint.update(ids.tobytes() + is_answer.tobytes())
        free_tokens -= len(ids)
    if not rows[0]:
        raise CorpusError(
            where="data.chat",
            problem=f"it has no conversation for {split}",
            fix="check data.validation and data.pack",
        )

    def read(row: int) -> SourceRow:
        ids, is_answer = zip(*rows[row], strict=True)
        return SourceRow(
            ids=np.concatenate(ids),
            lengths=np.array([len(conversation) for conversation in ids]),
            is_target=np.concatenate(is_answer),
        )

    return TrainingRows(
        count=len(rows),
        row_tokens=data.pack,
        sequence_tokens=data.pack,
        fingerprint=fingerprint.hexdigest(),
        read=read,
        dropped=dropped,
    )
