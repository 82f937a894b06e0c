"""MosaicML streaming: its `MDSWriter` writes the same bytes, its `StreamingDataset` reads them."""

import re
from itertools import accumulate, pairwise
from pathlib import Path

import numpy as np
import pytest
from tests.support.exported_rows import documents_in, exported, rows_in
from tests.support.random_rows import documents_of, options, random_blocks, rows_of

from nextlong.export.formats import mds
from nextlong.export.formats.base import RowSizes

PAGE = Path(__file__).parents[2] / "docs" / "formats.md"

pytestmark = [
    pytest.mark.readers,
    pytest.mark.filterwarnings("ignore"),
]  # not ours to mend

COLUMNS = {
    "input_ids": "ndarray:uint32",
    "indices": "ndarray:uint32",
    "length": "int",
    "domain": "str",
}


@pytest.fixture(params=[1, 4], ids=["single", "packed"])
def rows(request):
    return rows_of(
        random_blocks(request.param, rows=60, longest=70_000, per_row=request.param)
    )


def samples_of(rows):
    """Return what `MDSWriter` is given for the same rows."""
    for row in rows:
        ends = np.cumsum(row.document_lengths)
        indices = np.column_stack([ends - row.document_lengths, ends]).astype(np.uint32)
        ids = row.input_ids.astype(np.uint32)
        yield {
            "input_ids": ids,
            "indices": indices,
            "length": len(ids),
            "domain": row.domains[0],
        }


def write(folder, rows, *, size_limit, compression):
    folder.mkdir()
    given = {"shard_bytes": size_limit, "compression": compression or "none"}
    lengths = np.array([row.token_offsets[-1] for row in rows])
    documents = np.array([row.document_offsets[-1] for row in rows])
    sizes = mds._shard_sizes(
        RowSizes(lengths, documents, [row.domains[0] for row in rows]), options(**given)
    )
    counts = [
        mds.FORMAT.write(
            folder / "part",
            rows[first:last],
            options(shard=shard, shards=len(sizes), **given),
        )
        for shard, (first, last) in enumerate(pairwise(accumulate([0, *sizes])))
    ]
    mds.FORMAT.close(folder, counts)
    return sizes


@pytest.mark.parametrize("compression", [None, "zstd"])
@pytest.mark.parametrize("size_limit", [1 << 26, 5_000_000, 700_000, 100_000])
def test_its_writer_writes_the_same_bytes(
    streaming, rows, tmp_path, compression, size_limit
):
    sizes = write(
        tmp_path / "ours", rows, size_limit=size_limit, compression=compression
    )
    theirs = tmp_path / "theirs"
    with streaming.MDSWriter(
        columns=COLUMNS, out=str(theirs), compression=compression, size_limit=size_limit
    ) as writer:
        for sample in samples_of(rows):
            writer.write(sample)
    found, expected = (
        {path.name: path.read_bytes() for path in folder.iterdir()}
        for folder in (tmp_path / "ours", theirs)
    )
    assert found.keys() == expected.keys()
    assert len(found) == len(sizes) + 1
    assert [name for name in found if found[name] != expected[name]] == []


@pytest.mark.parametrize("compression", [None, "zstd"])
def test_its_dataset_reads_the_same_rows(streaming, rows, tmp_path, compression):
    assert (
        len(
            write(
                tmp_path / "ours", rows, size_limit=1_000_000, compression=compression
            )
        )
        > 3
    )
    dataset = streaming.StreamingDataset(
        remote=str(tmp_path / "ours"),
        local=str(tmp_path / "cache"),
        batch_size=1,
        shuffle=False,
    )
    found = [dataset[number] for number in range(len(dataset))]
    assert [sample["domain"] for sample in found] == [row.domains[0] for row in rows]
    assert [sample["length"] for sample in found] == [
        len(row.input_ids) for row in rows
    ]
    documents = [
        sample["input_ids"][start:end].tolist()
        for sample in found
        for start, end in sample["indices"]
    ]
    assert documents == documents_of(rows)
    assert {
        (sample["input_ids"].dtype.name, sample["indices"].dtype.name)
        for sample in found
    } == {("uint32", "uint32")}


@exported("mds", "prolong")
def test_its_dataset_reads_the_exports_of_a_run(streaming, folder, reference, tmp_path):
    dataset = streaming.StreamingDataset(
        remote=str(folder), local=str(tmp_path), batch_size=1, shuffle=False
    )
    found = [dataset[number] for number in range(len(dataset))]
    rows = rows_in(reference)
    assert [sample["input_ids"].tolist() for sample in found] == [
        row["input_ids"] for row in rows
    ]
    assert [np.diff(sample["indices"]).ravel().tolist() for sample in found] == [
        row["seq_lengths"] for row in rows
    ]
    assert [sample["length"] for sample in found] == [
        len(row["input_ids"]) for row in rows
    ]
    documents = [
        sample["input_ids"][start:end].tolist()
        for sample in found
        for start, end in sample["indices"]
    ]
    assert documents == documents_in(reference)


@exported("mds", splits=["train"])
def test_it_reads_an_export_as_the_page_says(
    streaming, folder, reference, monkeypatch, tmp_path
):
    blocks = re.findall(
        r"```python\n(.*?)```", PAGE.read_text("utf-8"), flags=re.DOTALL
    )
    (block,) = [block for block in blocks if "RUN/data/mds" in block]
    (tmp_path / "RUN" / "data").mkdir(parents=True)
    (tmp_path / "RUN" / "data" / "mds").symlink_to(folder)
    monkeypatch.chdir(tmp_path)
    names = {}
    exec(block, names)
    assert [sample["input_ids"].tolist() for sample in names["rows"]] == [
        row["input_ids"] for row in rows_in(reference)
    ]
