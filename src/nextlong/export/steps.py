"""Build the export steps: sequences → rows → files of each format, of one run or of several mixed runs.

In:  SEQUENCES (references) of one or more runs, and the files that they refer to.
Out: the rows (`export/arrange.py`), then the files of each shard in the requested formats (modules of `formats/`) and, once
     all shards are written, the format's index of them. Rows are resolved run by run in blocks of about eight million tokens.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from nextlong.artifacts import corpus_files
from nextlong.artifacts.blocks import (
    Resolved,
    Wanted,
    domains_of,
    joined,
    joined_names,
    of_documents,
    packed,
    resolve_table,
    sliced,
)
from nextlong.artifacts.results import (
    ShardResult,
    TokenizerFiles,
    TokenizerResult,
    chunks_of,
    sequences_per_part,
)
from nextlong.artifacts.sequence_files import SequenceFiles
from nextlong.engine import store
from nextlong.engine.step import (
    Artifacts,
    Join,
    Step,
    Task,
    TaskResult,
    Work,
)
from nextlong.errors import RecipeError, RunError
from nextlong.export.arrange import (
    SPLITS,
    Arrangement,
    RowFiles,
    RowsResult,
    arrange_rows,
)
from nextlong.export.formats.base import Format, Options, RowSizes, format_of
from nextlong.plugins import FORMATS
from nextlong.recipe import Export
from nextlong.sequences.tokenizer import special_id
from nextlong.text import Json

MIN_SHARDS = 16  # at least, so that small data sets are written in parallel as well …
MIN_SHARD_MB, MAX_SHARD_MB = (
    8,
    256,
)  # … within these file sizes, which suit readers
ID_BYTES = 4
_BLOCK_TOKENS = (
    1 << 23
)  # tokens resolved at a time, 32 MB of ids: each block reads from every shard that it names
_SEQUENCES_HELD = (
    4096  # sequences whose references are held at a time, about 100 bytes a span
)
_NO_CHANGE = {
    "boundaries": "sequence",
    "pad_documents_to": None,
}  # key values that do not change the files

_Count = int | Literal["all"]
_FilesOf = Callable[
    [Artifacts], list[SequenceFiles]
]  # of the recipe's own run, and of the other runs of a mix


def export_steps(
    export: Export,
    read: Sequence[Step],
    *,
    sequences: _Count,
    others: Sequence[tuple[_Count, Artifacts]] = (),
    mix: Sequence[float] = (),
    by: Literal["sequences", "tokens"] = "sequences",
) -> list[Step]:
    """Return the steps that write every format; they read the files of the steps `read`, see `read_steps`.

    `sequences` is the recipe's `compose.sequences`; `others` are those of other runs, with their finished steps. `mix` are the
    proportions of all runs, the recipe's own first; if empty, all sequences are used.
    """

    def of_runs(done: Artifacts) -> list[SequenceFiles]:
        runs = ((sequences, done), *others)
        return [
            SequenceFiles.of(steps, sequences_per_part(count, steps["compose"]))
            for count, steps in runs
        ]

    is_split = export.validation > 0
    arrangement: Json = {
        "mix": tuple(mix) or None if others else None,
        "by": by if others else "sequences",
        "validation": export.validation,
        "shared_chunks": export.shared_chunks if is_split else "keep",
        "pack": export.pack,
        "seed": export.split_seed if is_split else 0,
    }

    def tasks(done: Artifacts) -> list[Task]:
        return [
            partial(
                arrange_rows, runs=of_runs(done), arrangement=Arrangement(**arrangement)
            )
        ]

    fingerprints = [
        [step.fingerprint for step in read_steps(steps)] for _, steps in others
    ]
    config = arrangement | {
        "sequences": [sequences, *(count for count, _ in others)],
        "others": fingerprints,
    }
    rows = Step("rows", 2, config, tuple(read), tasks, RowsResult)
    each = ((name, split) for name in export.formats for split in splits_of(export))
    return [
        rows,
        *(
            _format_step(export, name, split, rows, read, of_runs)
            for name, split in each
        ),
    ]


def check_names(formats: Sequence[str], known: Artifacts) -> None:
    """Raise RecipeError for a format with the name of another step of the run, which it would replace in the record."""
    for name in formats:
        if name in known and "format" not in known[name].manifest["config"]:
            problem = f"export.formats: {name} is also the name of a step of the run"
            raise RecipeError(f"{problem}; rename the format and its entry point")


def read_steps(done: Artifacts) -> tuple[Step, ...]:
    """Return the steps of a finished run whose files exporting reads."""
    names = (
        "ingest",
        chunks_of(done).name,
        "tokenizer",
        "referenced_chunks",
        "tokens",
        "compose",
    )
    return tuple(Step.of(done[name]) for name in names)


def check_read(done: Artifacts, run_dir: Path, *, trust: store.Trust) -> None:
    """Raise RunError if a file that exporting reads was altered; the message names the exports made from it.

    Before publishing, files are hashed (`trust="hash"`): a bit that flipped on disk changes neither size nor time.
    """
    for step in (done[step.name] for step in read_steps(done)):
        try:
            store.check_files(step.folder, step.manifest, trust=trust)
        except RunError as error:
            paths, fingerprint = (
                sorted(run_dir.glob(f"*/{store.MANIFEST}")),
                step.manifest["fingerprint"],
            )
            inputs = {
                str(path.parent): store.read_json(path)["inputs"] for path in paths
            }
            made = [
                name
                for name, read in inputs.items()
                if "rows" in read and read.get(step.name) == fingerprint
            ]
            exports = (
                f"; also delete the exports made from it: {', '.join(made)}"
                if made
                else ""
            )
            raise RunError(f"{error}{exports}") from None


def splits_of(export: Export) -> tuple[str, ...]:
    """Return the names of the splits of the recipe."""
    return SPLITS if export.validation else SPLITS[:1]


def step_name(name: str, split: str) -> str:
    """Return the name of the step that writes a split in a format."""
    return name if split == "train" else f"{name}-{split}"


def _format_step(
    export: Export,
    name: str,
    split: str,
    rows: Step,
    read: Sequence[Step],
    of_runs: _FilesOf,
) -> Step:
    """Return the step from rows to the files of one split in one format."""
    made = format_of(name)
    compression = (
        export.compression
        if export.compression in made.compressions
        else made.compressions[0]
    )
    # Values that do not change the files are not part of the fingerprint.
    keys = {key: getattr(export, key) for key in sorted(made.keys - {"compression"})}
    keys = {
        key: value
        for key, value in keys.items()
        if key not in _NO_CHANGE or value != _NO_CHANGE[key]
    }
    config: Json = {"format": name, "split": split, "shard_mb": export.shard_mb, **keys}
    if compression != made.compressions[0]:
        config["compression"] = compression
    if made.extra_tokens:
        config["extra_tokens"] = made.extra_tokens
    if made.min_shard_rows > 1:
        config["min_shard_rows"] = made.min_shard_rows
    requested_mb = made.auto_shard_mb if export.shard_mb == "auto" else export.shard_mb

    def tasks(done: Artifacts) -> Work:
        rows = RowFiles.of(done, split)
        index, offsets = rows.index, rows.offsets
        id_bytes = ID_BYTES * int(np.load(index)["length"].sum())
        auto_bytes = min(
            max(id_bytes // MIN_SHARDS, MIN_SHARD_MB * 1_000_000),
            MAX_SHARD_MB * 1_000_000,
        )
        tokenizer = done["tokenizer"].result(TokenizerResult)
        options = Options(
            keys=keys | {"compression": compression},
            shard_bytes=auto_bytes
            if requested_mb is None
            else int(requested_mb * 1_000_000),
            vocab_size=tokenizer.vocab_size,
            bos_id=tokenizer.bos_id,
            eos_id=tokenizer.eos_id,
            token_id=partial(
                special_id,
                TokenizerFiles.of(done).tokenizer,
                key="export.megatron_eod",
            ),
        )
        origins = of_runs(done)
        bounds = _shard_bounds(
            np.load(index), np.load(offsets), origins, made=made, options=options
        )
        shard = partial(
            _export_shard, name=name, index=index, offsets=offsets, origins=origins
        )
        each = [
            partial(
                shard,
                rows=rows,
                options=replace(options, shard=number, shards=len(bounds) - 1),
            )
            for number, rows in enumerate(pairwise(bounds))
        ]
        return Work(
            each,
            [
                Join(
                    range(len(each)),
                    lambda results: partial(_close_export, name=name, shards=results),
                )
            ],
        )

    return Step(
        step_name(name, split),
        5,
        config,
        (rows, *read),
        tasks,
        made.result,
    )


def _shard_bounds(
    index: NDArray[Any],
    offsets: NDArray[np.int64],
    origins: Sequence[SequenceFiles],
    *,
    made: Format,
    options: Options,
) -> list[int]:
    """Return the bounds of the rows of each file: by the format's rule, else of about `options.shard_bytes` of ids."""
    # (rows,) the tokens of each row; the index has the lengths of sequences, the offsets the sequences of each row.
    row_tokens = np.diff(np.concatenate([[0], np.cumsum(index["length"])])[offsets])
    if made.shard_rows is not None:
        domains = np.empty(len(index), object)  # of each sequence
        for number, origin in enumerate(origins):
            places = np.flatnonzero(index["run"] == number)
            for some in (
                np.array_split(places, -(-len(places) // _SEQUENCES_HELD))
                if len(places)
                else ()
            ):
                lists = [
                    _table(index[some], origin).column(name).combine_chunks()
                    for name in ("chunk_id", "role")
                ]
                chunk_ids, roles = (column.values.to_numpy() for column in lists)
                domains[some] = domains_of(
                    chunk_ids, roles, lists[0].offsets.to_numpy(), origin.corpus
                )
        of_rows = [
            joined_names(domains[first:last].tolist())
            for first, last in pairwise(offsets.tolist())
        ]
        sizes = made.shard_rows(
            RowSizes(row_tokens, np.diff(offsets), of_rows), options
        )
        return [0, *np.cumsum(sizes, dtype=np.int64).tolist()]
    runs = corpus_files.runs_within(ID_BYTES * row_tokens, options.shard_bytes)
    bounds = [0, *(last for _, last in runs)]
    return _without_small_files(bounds, min_rows=made.min_shard_rows)


def _without_small_files(bounds: list[int], *, min_rows: int) -> list[int]:
    """Return the bounds of files of at least `min_rows` rows, or of all rows."""
    if len(bounds) == 1:
        return bounds
    kept = [bounds[0]]
    for bound in bounds[1:]:
        if bound - kept[-1] >= min_rows:
            kept.append(bound)
    # The rows after the last bound belong to the file before them, if there is one.
    if len(kept) > 1:
        kept.pop()
    return [*kept, bounds[-1]]


def _export_shard(
    out: Path,
    *,
    name: str,
    rows: tuple[int, int],
    index: Path,
    offsets: Path,
    origins: Sequence[SequenceFiles],
    options: Options,
) -> ShardResult:
    """Write rows [first, last) of `index` and `offsets` as one shard; its files are named after `out`."""
    made, row_offsets = format_of(name), np.load(offsets)[rows[0] : rows[1] + 1]
    blocks = _read_rows(np.load(index), row_offsets, origins, wanted=made.wanted)
    if options.keys.get("boundaries") == "document":
        blocks = map(of_documents, blocks)
    written = made.write(out, blocks, options)
    if not isinstance(written, made.result):
        raise FORMATS.broken(
            name,
            f"returns {written!r:.80} from write, which must be its {made.result.__name__}",
        )
    return written


def _close_export(out: Path, *, name: str, shards: Sequence[ShardResult]) -> TaskResult:
    """Write the format's files that describe all shards, from the results of `write`."""
    if (close := format_of(name).close) is not None:
        close(out.parent, shards)
    return TaskResult()


def _read_rows(
    index: NDArray[Any],
    offsets: NDArray[np.int64],
    origins: Sequence[SequenceFiles],
    *,
    wanted: Wanted,
) -> Iterator[Resolved]:
    """Yield blocks of rows, of about eight million tokens; row i has the sequences index[offsets[i]:offsets[i + 1]]."""
    row_tokens = np.diff(np.append(0, np.cumsum(index["length"]))[offsets])
    for first, last in corpus_files.runs_within(row_tokens, _BLOCK_TOKENS):
        sequences = index[offsets[first] : offsets[last]]
        runs = sequences["run"]
        of_runs = {
            run: resolve_table(
                _table(sequences[runs == run], origins[run]),
                origins[run],
                wanted=wanted,
            )
            for run in np.unique(runs).tolist()
        }
        block = of_runs[int(runs[0])]
        if len(of_runs) > 1:
            # `of_runs` has the sequences of each run in order; take them stretch by stretch in the order of the block.
            stretches, seen = [], Counter[int]()
            for stretch in np.split(runs, np.flatnonzero(np.diff(runs)) + 1):
                run = int(stretch[0])
                stretches.append(
                    sliced(of_runs[run], seen[run], seen[run] + len(stretch))
                )
                seen[run] += len(stretch)
            block = joined(stretches)
        yield packed(block, offsets[first : last + 1] - offsets[first])


def _table(sequences: NDArray[Any], origin: SequenceFiles) -> pa.Table:
    """Return the SEQUENCES of one run that an index names; consecutive ones of a file are read together."""
    batches: list[pa.RecordBatch] = []
    for part in np.split(sequences, np.flatnonzero(np.diff(sequences["part"])) + 1):
        with pa.ipc.open_file(
            pa.memory_map(str(origin.sequences[part["part"][0]]))
        ) as reader:
            batches += [reader.get_batch(place) for place in part["place"].tolist()]
    return pa.Table.from_batches(batches)
