"""Rows: what a training step reads, with the boundaries of its documents.

In:  finished runs (nothing is exported), exported Parquet, or conversations; which tokens see each other.
Out: `TrainingRow`s: ids, labels (−100 at the first token of a document), positions from 0 in each document, and its boundaries.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import accumulate
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch
from numpy.typing import NDArray
from transformers import PreTrainedTokenizerBase

from nextlong.artifacts.rows import SPANS, original_lengths
from nextlong.errors import CorpusError, RecipeError, TokenizerError
from nextlong.rng import keyed_hash, threshold_for
from nextlong.schemas import META, ROLES
from nextlong.text import counted
from nextlong.torch import SequenceDataset
from nextlong.train.conversations import read_conversations, render
from nextlong.train.loss import IGNORED
from nextlong.train.recipe import Attention, Data, TrainRecipe, nearest_multiple


@dataclass(frozen=True)
class TrainingRow:
    """T tokens: `input_ids`, `labels`, `position_ids` int64 (T,), `bounds` int32 (documents + 1,), `spans` (Rows.spans) or None."""

    input_ids: torch.Tensor
    labels: torch.Tensor
    position_ids: torch.Tensor
    bounds: torch.Tensor
    spans: NDArray[np.void] | None


class _SourceRow(NamedTuple):
    """A row as stored: ids (T,), lengths of its sequences, spans and predicted tokens (T,) if they are known (None: all)."""

    ids: NDArray[np.int64]
    lengths: NDArray[np.int64]
    spans: NDArray[np.void] | None = None
    is_target: NDArray[np.bool_] | None = None


@dataclass(frozen=True)
class TrainingRows:
    """Rows as a trainer takes them: how many, the tokens of the longest row and sequence, and a fingerprint of their contents.

    `read` returns a row as stored, and `dropped` counts conversations that are longer than a row. `attention` says which tokens see
    each other, and `vocabulary` how many ids the model knows (None: not checked).
    """

    count: int
    row_tokens: int
    sequence_tokens: int
    fingerprint: str
    read: Callable[[int], _SourceRow]
    dropped: int = 0
    attention: Attention = "sequence"
    vocabulary: int | None = None

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, row: int) -> TrainingRow:
        ids, lengths, spans, is_target = self.read(row)
        if (
            self.vocabulary is not None
            and (highest := int(ids.max())) >= self.vocabulary
        ):
            problem = f"row {row} of data holds the id {highest:,}, and the model knows {self.vocabulary:,}"
            cure = "train a model with the tokenizer that the data were made with (model.path, or model.scratch.vocabulary)"
            raise TokenizerError(f"{problem}; {cure}")
        if self.attention == "row":
            lengths = lengths.sum(keepdims=True)
        elif self.attention == "document":
            if spans is None:
                raise RecipeError(
                    "attention: document needs the documents of each row; use runs or Parquet with spans"
                )
            lengths = original_lengths(lengths, spans)
        batch = packed_batch(
            torch.from_numpy(ids.astype(np.int64))[None],
            [0, *np.cumsum(lengths).tolist()],
        )
        input_ids, labels, position_ids = (
            batch[name][0] for name in ("input_ids", "labels", "position_ids")
        )
        if is_target is not None:
            labels[~torch.from_numpy(is_target)] = IGNORED
        return TrainingRow(
            input_ids, labels, position_ids, batch["cu_seq_lens_q"], spans
        )


_PARQUET_CURE: Final = "name files of `nextlong export --to parquet`"
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
    return (
        _chat_rows(data, split=split, tokenizer=tokenizer)
        if data.chat
        else _parquet_rows(data, split=split)
    )


def _is_on_side(
    numbers: NDArray[np.int64], data: Data, *, split: str
) -> NDArray[np.bool_]:
    """Return which of the numbered rows, or conversations, are on one side of the split, which is sampled by keyed hash."""
    keys = keyed_hash(
        numbers.astype(np.uint64), seed=data.split_seed, stage="validation"
    )
    is_held_out: NDArray[np.bool_] = keys < threshold_for(data.validation)
    return is_held_out if split == "validation" else ~is_held_out


def _run_rows(data: Data, *, split: str) -> TrainingRows:
    """Return the rows of finished runs with their spans, as SequenceDataset arranges them."""
    keys, columns = {"mix", "by", "pack"}, ("input_ids", "seq_lengths")
    if data.validation:  # else every sequence is trained on, and the options of the split must not be given
        keys |= {"validation", "shared_chunks", "split_seed"}
    side: Any = split if data.validation else None
    dataset = SequenceDataset(
        data.runs, columns=columns, split=side, **data.model_dump(include=keys)
    )
    stored, lengths = dataset.rows, np.unique(dataset.rows.index["length"]).tolist()
    if data.pack is None and len(lengths) > 1:
        mixed = f"sequences of {lengths[0]:,} to {lengths[-1]:,} tokens, so rows would differ in length"
        cure = f"set data.pack={lengths[-1]}, which puts several short ones into a row"
        raise RecipeError(f"data.runs mixes {mixed}; {cure}")

    def read(row: int) -> _SourceRow:
        tensors = dataset[row]
        return _SourceRow(
            tensors["input_ids"].numpy(),
            tensors["seq_lengths"].numpy(),
            stored.spans(row),
        )

    row_tokens = max(int(stored.lengths(row).sum()) for row in range(len(stored)))
    return TrainingRows(
        len(stored), row_tokens, stored.longest, stored.fingerprint, read
    )


def _parquet_rows(data: Data, *, split: str) -> TrainingRows:
    """Return the rows of Parquet files, written here or by others: a column `input_ids` and, optionally, `seq_lengths`,
    `spans`, `labels` (not shifted, −100 where nothing is to be predicted) and `attention_mask` (0: padding at the end).

    They are in the order of the files' names. A row group is read when one of its rows is requested, and kept for the next row.
    Validation rows are sampled by keyed hash of the row's number.
    """
    stored: list[tuple[tuple[Path, int], int, NDArray[np.int64]]] = []
    state = hashlib.blake2b(digest_size=8)
    for path in (Path(name).expanduser() for name in data.parquet):
        if not (files := [path] if path.is_file() else sorted(path.rglob("*.parquet"))):
            raise RecipeError(
                f"data.parquet: {path} holds no .parquet file; name files or a folder of them"
            )
        for one in files:
            stored += _rows_in(one)
            state.update(
                repr(pq.read_metadata(one).to_dict()).encode()
            )  # offsets and statistics of all columns
    numbers = np.flatnonzero(_is_on_side(np.arange(len(stored)), data, split=split))
    if not len(numbers):
        raise CorpusError(
            f"data.parquet has no row for {split}; change data.validation, or export more rows"
        )
    state.update(numbers.tobytes())
    rows = [stored[number] for number in numbers.tolist()]
    tokens = sorted({int(lengths.sum()) for *_, lengths in rows})
    if len(tokens) > 1:
        cure = "name exports whose rows have one length, or name the runs under data.runs with data.pack"
        raise RecipeError(
            f"data.parquet mixes rows of {tokens[0]:,} and {tokens[-1]:,} tokens; {cure}"
        )

    @lru_cache(maxsize=1)
    def table_of(path: Path, group: int) -> pa.Table:
        reader = pq.ParquetFile(path)
        names = [name for name in _READ if name in reader.schema_arrow.names]
        return reader.read_row_group(group, columns=names).combine_chunks()

    def read(row: int) -> _SourceRow:
        (path, group), place, lengths = rows[row]
        table = table_of(path, group)
        ids = table.column("input_ids")[place].values.to_numpy().astype(np.int64)
        if lengths.sum() != len(ids):
            found = f"add up to {lengths.sum():,} tokens, not {len(ids):,}"
            mistake = f"seq_lengths of row {place} of row group {group} {found}"
            raise RecipeError(f"data.parquet: {path}: {mistake}; {_PARQUET_CURE}")
        where = f"data.parquet: {path}: row {place} of row group {group}"
        is_target = _targets_in(table, place, ids=ids, where=where)
        if "spans" not in table.column_names:
            return _SourceRow(ids, lengths, is_target=is_target)
        row_spans = table.column("spans")[place].as_py()
        if unknown := {span["role"] for span in row_spans} - set(ROLES):
            cure = f"known are {', '.join(ROLES)}: {_PARQUET_CURE}"
            raise RecipeError(
                f"data.parquet: {path} has spans of role {min(unknown)!r}; {cure}"
            )
        return _SourceRow(ids, lengths, _spans_of(row_spans, lengths), is_target)

    # The fingerprint is of the files' metadata, and of which rows are read.
    return TrainingRows(
        len(rows),
        tokens[0],
        max(int(lengths.max()) for *_, lengths in rows),
        state.hexdigest(),
        read,
    )


def _targets_in(
    table: pa.Table, place: int, *, ids: NDArray[np.int64], where: str
) -> NDArray[np.bool_] | None:
    """Return which tokens (T,) of a row are to be predicted, by the columns of the table; None: all.

    Padding at the end needs no attention mask: causal attention never reads it.
    Raises RecipeError for other padding, and for labels of other tokens.
    """
    marks = {}
    for name in ("attention_mask", "labels"):
        if name in table.column_names:
            values = table.column(name)[place].values
            if values is None or len(values) != len(ids) or values.null_count:
                problem = f"needs a value of {name} for each of its {len(ids):,} ids"
                raise RecipeError(f"{where} {problem}; {_PARQUET_CURE}")
            marks[name] = values.cast(pa.int64()).to_numpy()
    if not marks:
        return None
    is_target = np.ones(len(ids), bool)
    if "attention_mask" in marks:
        is_target = marks["attention_mask"] != 0
        is_padded_before = (is_target[1:] & ~is_target[:-1]).any()
        if is_padded_before:
            cure = "remove the padding, or move it to the end of the row"
            raise RecipeError(f"{where} has attention_mask 0 before tokens; {cure}")
    if "labels" in marks:
        has_label = marks["labels"] != IGNORED
        differing = np.flatnonzero(has_label & (marks["labels"] != ids))
        if len(differing):
            first = int(differing[0])
            found = f"label {marks['labels'][first]} for the id {ids[first]}"
            cure = "write labels that are not shifted, −100 where none is predicted"
            raise RecipeError(f"{where} has the {found} at token {first}; {cure}")
        is_target &= has_label
    return is_target


def _spans_of(
    row_spans: Sequence[Mapping[str, Any]], lengths: NDArray[np.int64]
) -> NDArray[np.void]:
    """Return the SPANS of an exported row: one element per span, in the order of the row, with tokens counted from its start."""
    spans = np.zeros(len(row_spans), SPANS)
    for field, column in {
        "chunk_id": "chunk_id",
        "first": "token_start",
        "last": "token_end",
    }.items():
        spans[field] = [span[column] for span in row_spans]
    spans["role"] = [ROLES.index(span["role"]) for span in row_spans]
    spans["sequence"] = np.searchsorted(
        np.cumsum(lengths), spans["first"], side="right"
    )
    # `group` numbers the original documents of a concatenation, or the meta-chunks that negatives follow.
    documents = np.array([span["doc_id"] for span in row_spans])
    is_new = np.concatenate([[True], documents[1:] != documents[:-1]])
    is_meta = spans["role"] == META
    spans["group"] = np.cumsum(is_meta if is_meta.any() else is_new) - 1
    return spans


def _rows_in(path: Path) -> Iterator[tuple[tuple[Path, int], int, NDArray[np.int64]]]:
    """Yield of each row of a file its row group (of the file, from 0), its place there, and the lengths of its sequences."""
    try:
        file = pq.ParquetFile(path)
    except (pa.ArrowException, OSError) as error:
        reason = str(error).split(".")[0]
        raise RecipeError(
            f"data.parquet: {path} cannot be read as Parquet ({reason}); {_PARQUET_CURE}"
        ) from None
    names = file.schema_arrow.names
    if "input_ids" not in names:
        raise RecipeError(
            f"data.parquet: {path} has no column input_ids; {_PARQUET_CURE}"
        )
    kind = file.schema_arrow.field("input_ids").type
    if not pa.types.is_integer(getattr(kind, "value_type", pa.null())):
        raise RecipeError(
            f"data.parquet: {path}: input_ids holds {kind}, not lists of token ids; {_PARQUET_CURE}"
        )
    if "seq_lengths_padded" in names:
        cure = "export it without export.pad_documents_to"
        raise RecipeError(
            f"data.parquet: {path} has padded documents, which this trainer does not need; {cure}"
        )
    has_lengths = "seq_lengths" in names  # without it a row is one sequence
    if unread := _OTHER_TARGETS.intersection(names):
        cure = "write −100 into a column labels where nothing is to be predicted"
        raise RecipeError(
            f"data.parquet: {path} has the column {min(unread)}, which is not read; {cure}"
        )
    if not has_lengths and (unread := _OTHER_BORDERS.intersection(names)):
        cure = "write the lengths of each row's sequences into a column seq_lengths"
        raise RecipeError(
            f"data.parquet: {path} has the column {min(unread)}, which is not read; {cure}"
        )
    for number in range(file.num_row_groups):
        _check_ids(path, file, number)
        (column,) = file.read_row_group(
            number, columns=["seq_lengths" if has_lengths else "input_ids"]
        ).columns
        for place, one in enumerate(column):
            if not one.is_valid or not len(one):
                cure = "remove the row, or export again"
                raise RecipeError(
                    f"data.parquet: {path}: row {place} of row group {number} holds no tokens; {cure}"
                )
            lengths = one.values.to_numpy() if has_lengths else np.array([len(one)])
            yield (path, number), place, lengths.astype(np.int64)


def _check_ids(path: Path, file: pq.ParquetFile, group: int) -> None:
    """Raise RecipeError for the first row of a row group that holds a null or a negative id.

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
    for place, row in enumerate(column):
        values = row.values
        if values is None or not len(values):
            continue
        ids = values.cast(pa.int64()).fill_null(-1).to_numpy()
        if (ids < 0).any():
            token = int(np.argmax(ids < 0))
            found = "null" if values[token].as_py() is None else f"the id {ids[token]}"
            raise RecipeError(
                f"data.parquet: {path}: row {place} of row group {group} holds {found} "
                f"at token {token}; remove the row, or export again"
            )


def _chat_rows(
    data: Data, *, split: str, tokenizer: PreTrainedTokenizerBase | None
) -> TrainingRows:
    """Return conversations in rows of at most `data.pack` tokens, in order; the answers alone are to be predicted.

    They are rendered by the tokenizer's chat template.
    """
    assert data.chat is not None, "the recipe names it"
    assert data.pack is not None, "the recipe requires it"
    if tokenizer is None or not getattr(tokenizer, "chat_template", None):
        cure = "use a model that has one"
        raise TokenizerError(
            f"data.chat needs a chat template; the model's tokenizer has none; {cure}"
        )
    rows: list[list[tuple[NDArray[np.int64], NDArray[np.bool_]]]] = [[]]
    room, dropped, state = data.pack, 0, hashlib.blake2b(digest_size=8)
    conversations = read_conversations(Path(data.chat).expanduser())
    for number, conversation in enumerate(conversations):
        if not _is_on_side(np.array([number]), data, split=split)[0]:
            continue
        ids, is_answer = render(conversation, tokenizer)
        if len(ids) > data.pack:
            dropped += 1
            continue
        # Next fit in file order: conversations stay whole, and the order of rows is that of the file.
        if len(ids) > room:
            rows.append([])
            room = data.pack
        rows[-1].append((ids, is_answer))
        state.update(ids.tobytes() + is_answer.tobytes())
        room -= len(ids)
    if not rows[0]:
        raise CorpusError(
            f"data.chat has no conversation for {split}; check data.validation and data.pack"
        )

    def read(row: int) -> _SourceRow:
        ids, is_answer = zip(*rows[row], strict=True)
        lengths = np.array([len(one) for one in ids])
        return _SourceRow(
            np.concatenate(ids), lengths, is_target=np.concatenate(is_answer)
        )

    return TrainingRows(
        len(rows), data.pack, data.pack, state.hexdigest(), read, dropped
    )


def flat(rows: Sequence[TrainingRow]) -> dict[str, Any]:
    """Lay rows end to end; return a batch as `packed_batch` does."""
    bounds = list(
        accumulate(
            (length for row in rows for length in row.bounds.diff().tolist()), initial=0
        )
    )
    batch = packed_batch(torch.cat([row.input_ids for row in rows])[None], bounds)
    return batch | {"labels": torch.cat([row.labels for row in rows])[None]}


def packed_batch(input_ids: torch.Tensor, bounds: Sequence[int]) -> dict[str, Any]:
    """Return what a model call takes of ids (1, T) whose documents lie between `bounds`, [0, …, T].

    Columns (1, T), and where the documents begin and end, also as Python integers (`document_bounds`), so that no layer waits
    for the device to read them.
    """
    labels, edges = input_ids.clone(), torch.tensor(bounds)
    labels[0, edges[:-1]] = (
        IGNORED  # the previous document must not predict the first token of the next
    )
    starts = edges[:-1].repeat_interleave(edges.diff(), output_size=bounds[-1])
    positions = (torch.arange(bounds[-1]) - starts)[None]
    columns = {"input_ids": input_ids, "labels": labels, "position_ids": positions}
    return {
        **columns,
        "cu_seq_lens_q": edges.to(torch.int32),
        "document_bounds": tuple(bounds),
    }


def on_device(batch: Mapping[str, Any], device: torch.device) -> dict[str, Any]:
    """Return a batch with its tensors on a device."""
    tensors = {
        name: one for name, one in batch.items() if isinstance(one, torch.Tensor)
    }
    return {
        **batch,
        **{name: one.to(device, non_blocking=True) for name, one in tensors.items()},
    }


def step_rows(recipe: TrainRecipe, *, rows: int, row_tokens: int) -> int:
    """Return how many of `rows` rows a step reads. Raises RecipeError or CorpusError if it cannot be made of whole rows."""
    tokens_per_step, at_once = (
        recipe.training.tokens_per_step,
        recipe.training.micro_batch_rows,
    )
    rows_per_step, rest = divmod(tokens_per_step, row_tokens)
    if rest or not rows_per_step:
        problem = f"training.tokens_per_step={tokens_per_step:,} is not a multiple of a row's {row_tokens:,} tokens"
        raise RecipeError(
            f"{problem}; use {nearest_multiple(tokens_per_step, row_tokens=row_tokens)}"
        )
    if rows_per_step % at_once:
        problem = f"a step has {rows_per_step} rows, which is not a multiple of training.micro_batch_rows={at_once}"
        raise RecipeError(
            f"{problem}; change training.tokens_per_step or training.micro_batch_rows"
        )
    if rows < rows_per_step:
        cure = "make more sequences, or lower training.tokens_per_step"
        raise CorpusError(
            f"{counted(rows, 'row')} to train on and a step needs {rows_per_step}; {cure}"
        )
    return rows_per_step
