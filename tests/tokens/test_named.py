import numpy as np
import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from nextlong import schemas
from nextlong.tokens.named import list_named_chunks

SHARDS = (5, 0, 3)  # chunks of each
IDS = [shard << schemas.SHARD_BITS | row for shard, rows in enumerate(SHARDS) for row in range(rows)]


def write(path, schema, batches):
    with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_file(sink, schema) as writer:
        for batch in batches:
            writer.write_batch(batch)
    return path


def draft(ids):
    row = {name: [0] for name in schemas.DRAFTS.names} | {"sequence_id": ["s"], "layout": ["extended"]}
    lists = {field.name: [[0] * len(ids)] for field in schemas.DRAFTS if pa.types.is_list(field.type)}
    columns = row | lists | {"chunk_id": [ids]}
    return pa.record_batch([pa.array(columns[field.name], field.type) for field in schemas.DRAFTS], schemas.DRAFTS)


@given(
    files=st.lists(st.lists(st.lists(st.sampled_from(IDS), max_size=6), max_size=4), max_size=3),
    limit=st.none() | st.integers(0, 8),
)
def test_the_chunks_of_the_first_drafts_are_listed_once_by_shard(tmp_path_factory, files, limit):
    folder = tmp_path_factory.mktemp("named")
    one_column = pa.schema([("start", pa.int64())])
    chunks = [
        write(
            folder / f"{shard}.chunks.arrow",
            one_column,
            [pa.record_batch([pa.array(range(rows), pa.int64())], one_column)],
        )
        for shard, rows in enumerate(SHARDS)
    ]
    drafts = [
        write(folder / f"{number}.drafts.arrow", schemas.DRAFTS, map(draft, held)) for number, held in enumerate(files)
    ]
    result = list_named_chunks(folder / "out", drafts=drafts, chunks=chunks, limit=limit)
    taken = [ids for held in files for ids in held][:limit]
    named = {one for ids in taken for one in ids}
    assert result.drafts == sum(result.take) == len(taken)
    assert result.chunks == len(named)
    found = [np.load(folder / f"out.{shard:05d}.rows.npy") for shard in range(len(SHARDS))]
    assert [shard << schemas.SHARD_BITS | row for shard, rows in enumerate(found) for row in rows.tolist()] == sorted(
        named
    )
