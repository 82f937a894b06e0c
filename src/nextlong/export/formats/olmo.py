"""OLMo: raw token files and the offsets of their documents, for OLMo-core.

Files: a pair for each shard. `part-00000.npy` has the name of a NumPy array but no
header, only the concatenated ids of the synthesized documents; `part-00000.csv.gz` has
a line for each document: its start and end in tokens. Documents must end in EOS.

Ids are uint16 if the vocabulary fits, else uint32, which is also OLMo-core's choice.
OLMo-core takes the ends of documents from the EOS tokens in the array or from the
second file, so both must agree.
"""

from __future__ import annotations

import csv
import gzip
from collections.abc import Iterable, Sequence
from itertools import pairwise
from pathlib import Path

import numpy as np

from nextlong.arrays import AnyArray
from nextlong.artifacts.blocks import Resolved
from nextlong.artifacts.results import ShardResult
from nextlong.errors import ExportError
from nextlong.export.formats.base import Format, LoadingCode, Options
from nextlong.text import Rows

_UINT16_VOCABULARY = 1 << 16


def _write(out: Path, rows: Iterable[Resolved], options: Options) -> ShardResult:
    """Write `{out}.npy` and `{out}.csv.gz`.

    Raises ExportError for a document that does not end in EOS, or has one within.
    """
    # As OLMo-core itself chooses.
    dtype = np.dtype("<u2" if options.vocab_size <= _UINT16_VOCABULARY else "<u4")
    count = 0
    bounds = [0]  # of documents, in tokens of the file
    with Path(f"{out}.npy").open("wb") as file:
        for block in rows:
            count += len(block)
            # (D,) where the block's documents end, which its EOS tokens must mark.
            ends = np.cumsum(block.document_lengths, dtype=np.int64)
            eos_ends = np.flatnonzero(block.input_ids == options.eos_id) + 1
            if not np.array_equal(eos_ends, ends):
                raise ExportError(
                    where="olmo",
                    problem="a document does not end in the EOS token, or contains it "
                    "earlier, where OLMo-core would split the document",
                    fix="run again with tokenizer.eos set to a token that the "
                    "documents do not contain",
                )
            bounds += (bounds[-1] + ends).tolist()
            file.write(np.ascontiguousarray(block.input_ids, dtype).data)
    lines = "".join(f"{start},{end}\n" for start, end in pairwise(bounds))
    # No name and no time in the gzip header, so that the same rows give the same bytes.
    with (
        Path(f"{out}.csv.gz").open("wb") as file,
        gzip.GzipFile("", "wb", fileobj=file, mtime=0) as packed,
    ):
        packed.write(lines.encode("ascii"))
    return ShardResult(rows=count, tokens=bounds[-1])


def _read(folder: Path, files: Sequence[str]) -> Rows:
    """Yield the documents of the arrays by the offsets beside them.

    Raises ValueError unless these tile the array.
    """
    for name in files:
        path = folder / name
        offsets = folder / name.replace(".npy", ".csv.gz")
        with gzip.open(offsets, "rt", newline="") as lines:
            documents = [(int(start), int(end)) for start, end in csv.reader(lines)]
        tokens = documents[-1][1] if documents else 0
        ids = _ids_of(path, tokens)
        previous_end = 0
        for start, end in documents:
            if start != previous_end or end <= start:
                raise ValueError(
                    f"{name} has a document from {start} to {end} after one that ends "
                    f"at {previous_end}"
                )
            yield {"input_ids": ids[start:end]}
            previous_end = end


def _ids_of(path: Path, tokens: int) -> AnyArray:
    """Return the ids of an array without a header, whose size tells their type."""
    size = path.stat().st_size
    if not tokens and not size:
        return np.empty(0, np.uint16)
    width, rest = divmod(size, max(1, tokens))
    if not tokens or rest or width not in (2, 4):
        raise ValueError(
            f"{path.name} does not have 2 or 4 bytes for each of the {tokens:,} tokens "
            "of its offsets"
        )
    ids: AnyArray = np.fromfile(path, f"<u{width}")
    return ids


FORMAT = Format(
    name="olmo",
    layout="raw token ids of OLMo-core",
    suffixes=(".npy",),
    write=_write,
    read=_read,
    unit="documents",
    eos="required",
    snippet=LoadingCode(
        "from glob import glob\n\n"
        "import numpy as np\n"
        "from olmo_core.data import NumpyFSLDataset",
        "NumpyFSLDataset(*sorted(glob({place} + '/*.npy')), sequence_length={tokens}, "
        "vocab_size={vocabulary}, pad_token_id={eos}, eos_token_id={eos}, "
        "dtype=np.{uint})  # bos_token_id stays unset: with it, OLMo-core ends a "
        "document only where a BOS follows its EOS",
        "len(rows), rows[0]['input_ids'][:8]",
    ),
)
