"""OLMo: raw token files and the offsets of their documents, for OLMo-core.

Files: a pair for each shard. `part-00000.npy` has the name of a NumPy array but no header, only the concatenated ids of the
synthesized documents; `part-00000.csv.gz` has a line for each document: its start and end in tokens. Documents must end in
EOS.

Ids are uint16 if the vocabulary fits, else uint32, which is also OLMo-core's choice. OLMo-core takes the ends of documents
from the EOS tokens in the array or from the second file, so both must agree.
"""

from __future__ import annotations

import csv
import gzip
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from nextlong.artifacts.blocks import Resolved
from nextlong.artifacts.results import ShardResult
from nextlong.errors import ExportError
from nextlong.export.formats.base import Format, LoadingCode, Options

_UINT16_VOCABULARY = 1 << 16


def _write(out: Path, rows: Iterable[Resolved], options: Options) -> ShardResult:
    """Write `{out}.npy` and `{out}.csv.gz`. Raises ExportError for a document that does not end in EOS, or has one within."""
    dtype = np.dtype("<u2" if options.vocab_size <= _UINT16_VOCABULARY else "<u4")
    count, ends = 0, [0]
    with Path(f"{out}.npy").open("wb") as file:
        for block in rows:
            count += len(block)
            # (D,) the ends of the block's documents, which must be where its EOS tokens are.
            block_ends = np.cumsum(block.document_lengths, dtype=np.int64)
            if not np.array_equal(
                np.flatnonzero(block.input_ids == options.eos_id) + 1, block_ends
            ):
                raise ExportError(
                    "olmo: a document has no EOS token at its end, or one within, where OLMo-core would split it; run again with "
                    "tokenizer.eos set to a token that the documents do not contain"
                )
            ends += (ends[-1] + block_ends).tolist()
            file.write(np.ascontiguousarray(block.input_ids, dtype).data)
    lines = "".join(f"{start},{end}\n" for start, end in pairwise(ends))
    # No name and no time in the gzip header, so that the same rows give the same bytes.
    with (
        Path(f"{out}.csv.gz").open("wb") as file,
        gzip.GzipFile("", "wb", fileobj=file, mtime=0) as packed,
    ):
        packed.write(lines.encode("ascii"))
    return ShardResult(rows=count, tokens=ends[-1])


def _read(folder: Path, files: Sequence[str]) -> Iterator[Mapping[str, Any]]:
    """Yield the documents of the arrays by the offsets beside them. Raises ValueError unless these tile the array."""
    for name in files:
        with gzip.open(
            folder / name.replace(".npy", ".csv.gz"), "rt", newline=""
        ) as lines:
            places = [(int(start), int(end)) for start, end in csv.reader(lines)]
        tokens = places[-1][1] if places else 0
        width, rest = divmod((folder / name).stat().st_size, max(1, tokens))
        if rest or width not in ((2, 4) if tokens else (0,)):
            raise ValueError(
                f"{name} does not have 2 or 4 bytes for each of the {tokens:,} tokens of its offsets"
            )
        ids = (
            np.fromfile(folder / name, f"<u{width}")
            if tokens
            else np.empty(0, np.uint16)
        )
        before = 0
        for start, end in places:
            if start != before or end <= start:
                raise ValueError(
                    f"{name} has a document from {start} to {end} after one that ends at {before}"
                )
            yield {"input_ids": ids[start:end]}
            before = end


FORMAT = Format(
    name="olmo",
    layout="raw token ids of OLMo-core",
    suffixes=(".npy",),
    write=_write,
    read=_read,
    unit="documents",
    eos="required",
    snippet=LoadingCode(
        "from glob import glob\n\nimport numpy as np\nfrom olmo_core.data import NumpyFSLDataset",
        "NumpyFSLDataset(*sorted(glob({place} + '/*.npy')), sequence_length={tokens}, vocab_size={vocabulary}, "
        "pad_token_id={eos}, eos_token_id={eos}, dtype=np.{uint})  # bos_token_id stays unset: "
        "with it, OLMo-core ends a document only where a BOS follows its EOS",
        "len(rows), rows[0]['input_ids'][:8]",
    ),
)
