"""Places of a file: the records there and the share that they stand for, whatever the format."""

import json
import random

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nextlong.inputs.listing import list_files
from nextlong.inputs.places import can_be_entered, sample_at, sample_through
from nextlong.recipe import Source

TEXTS = [f"document {number:03d} " + "of the tide " * 5 for number in range(200)]
MOST = 10_000


def write(path):
    table = pa.table({"text": TEXTS})
    if path.suffix == ".parquet":
        pq.write_table(table, path, row_group_size=20)
    elif path.suffix == ".arrow":
        with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_file(sink, table.schema) as writer:
            writer.write_table(table, max_chunksize=20)
    else:
        content = "".join(json.dumps({"text": text}) + "\n" for text in TEXTS).encode()
        path.write_bytes(pa.compress(content, "gzip", asbytes=True) if path.suffix == ".gz" else content)


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    folder, made = tmp_path_factory.mktemp("places"), {}
    for name in ("a.jsonl", "a.parquet", "a.arrow", "a.jsonl.gz"):
        write(folder / name)
        source = Source(path=str(folder / name))
        made[name] = (*list_files(source, where="path"), source)
    return made


@pytest.mark.parametrize("name", ["a.jsonl", "a.parquet", "a.arrow"])
@given(place=st.floats(0, 1, exclude_max=True), stretch=st.integers(500, 4000))
def test_a_place_holds_records_of_the_file_and_says_their_share(files, name, place, stretch):
    file, source = files[name]
    assert can_be_entered(file, source)
    sampled = sample_at(file, source, place=place, stretch=stretch, max_document_chars=MOST)
    numbers = [TEXTS.index(text.decode()) for text in sampled.texts]
    assert numbers == list(range(numbers[0], numbers[0] + len(numbers)))
    assert 0 < sampled.share <= 1
    assert not sampled.rejects
    assert len(numbers) / len(TEXTS) == pytest.approx(sampled.share, abs=0.01)
    assert numbers[0] / len(TEXTS) == pytest.approx(min(place, 1 - sampled.share), abs=0.11)


def test_a_compressed_file_is_read_through_and_a_share_of_it_kept(files):
    file, source = files["a.jsonl.gz"]
    assert not can_be_entered(file, source)
    draw = random.Random(7)
    some = sample_through(file, source, share=0.5, most_through=10**9, max_document_chars=MOST, draw=draw)
    assert {text.decode() for text in some.texts} < set(TEXTS)
    assert len(some.texts) / len(TEXTS) == pytest.approx(some.share, abs=0.01)
    whole = sample_through(file, source, share=1.0, most_through=10**9, max_document_chars=MOST, draw=draw)
    assert ([text.decode() for text in whole.texts], whole.share) == (TEXTS, 1.0)
