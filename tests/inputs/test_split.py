import gzip
import json
from dataclasses import replace
from itertools import pairwise

import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from nextlong.inputs import split
from nextlong.inputs.files import InputFile, Part
from nextlong.inputs.listing import list_files
from nextlong.inputs.record import Record, Reject
from nextlong.inputs.records import read_records
from nextlong.inputs.split import split_inputs
from nextlong.recipe import Source


def sized(*sizes, suffix):
    return [InputFile(f"/f{i}.{suffix}", size, "", f"f{i}.{suffix}") for i, size in enumerate(sizes)]


@pytest.mark.parametrize("suffix", ["csv.zst", "parquet", "txt"])
def test_small_files_share_a_task_and_a_big_one_has_its_own(suffix):
    tasks = split_inputs(sized(4, 4, 4, 30, 1, 1, suffix=suffix), Source(path="/"), shard_bytes=10, part_bytes=10)
    assert [[part.file.bytes for part in task] for task in tasks] == [[4, 4], [4], [30], [1, 1]]


def test_big_file_of_plain_lines_is_read_by_several_tasks():
    tasks = split_inputs(sized(4, 20, 31, 1, 1, suffix="jsonl"), Source(path="/"), shard_bytes=10, part_bytes=10)
    assert [[(part.file.name, part.start, part.stop) for part in task] for task in tasks] == [
        [("f0.jsonl", 0, None)],
        [("f1.jsonl", 0, None)],
        [("f2.jsonl", 0, 7)],
        [("f2.jsonl", 7, 15)],
        [("f2.jsonl", 15, 23)],
        [("f2.jsonl", 23, 31)],
        [("f3.jsonl", 0, None), ("f4.jsonl", 0, None)],
    ]


def test_format_of_the_recipe_says_what_can_be_parted():
    source = Source(path="/", format="jsonl")
    assert len(split_inputs(sized(30, suffix="data"), source, shard_bytes=10, part_bytes=10)) == 3
    (remote,) = sized(30, suffix="jsonl")
    assert len(split_inputs([replace(remote, path="memory://f0.jsonl")], source, shard_bytes=10, part_bytes=10)) == 1


@given(st.lists(st.integers(0, 50)), st.integers(1, 40), st.sampled_from(["jsonl", "jsonl.gz"]))
def test_tasks_hold_every_byte_once_in_order_within_the_limit(sizes, shard_bytes, suffix):
    files = sized(*sizes, suffix=suffix)
    tasks = split_inputs(files, Source(path="/"), shard_bytes=shard_bytes, part_bytes=2 * shard_bytes)
    parts = [part for task in tasks for part in task]
    assert [part.file for part in parts if not part.start] == files
    for file in files:
        own = [part for part in parts if part.file == file]
        assert [part.stop for part in own[:-1]] == [part.start for part in own[1:]]
        assert own[-1].stop in (None, file.bytes)
    assert all(task for task in tasks)
    assert all(len(task) == 1 or sum(part.file.bytes for part in task) <= shard_bytes for task in tasks)


COMPRESSED = {"gz": gzip.compress, "zst": zstandard.compress}


def in_parts(folder, content, *, suffix, part_bytes):
    """Return the items of a compressed file, read by parts of at least so many bytes, and these."""
    path = folder / f"a.jsonl.{suffix}"
    path.write_bytes(COMPRESSED[suffix](content))
    source = Source(path=str(path))
    (file,) = list_files(source, where="path")
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(split, "_SKIPPING_PART_BYTES", part_bytes)
        parts = [part for task in split_inputs([file], source, shard_bytes=1, part_bytes=1) for part in task]
    read = [item for part in parts for item in read_records(part, source, max_document_chars=1000)]
    assert read == list(read_records(Part(file), source, max_document_chars=1000))
    return read, parts


@given(
    lines=st.lists(st.sampled_from([b'{"text":"one"}', b"", b"{", b'{"text":"' + b"long " * 60 + b'"}']), min_size=1),
    is_ended=st.booleans(),
    suffix=st.sampled_from(sorted(COMPRESSED)),
    part_bytes=st.integers(1, 60),
)
def test_parts_of_a_file_compressed_as_a_whole_hold_every_line_once(
    tmp_path_factory, lines, is_ended, suffix, part_bytes
):
    content = b"\n".join([b'{"text":"head"}', *lines]) + b"\n" * is_ended
    _, parts = in_parts(tmp_path_factory.mktemp("parts"), content, suffix=suffix, part_bytes=part_bytes)
    assert len(parts) <= {"gz": 4, "zst": 8}[suffix]


@pytest.mark.parametrize(("suffix", "count"), [("gz", 4), ("zst", 8)])
def test_file_compressed_as_a_whole_is_shared_by_few_tasks_of_equal_size(tmp_path, suffix, count):
    lines = [
        b"{" if n % 70 == 1 else json.dumps({"text": f"{n * 7919} {'x' * (n % 90)}"}).encode() for n in range(2000)
    ]
    items, parts = in_parts(tmp_path, b"\n".join(lines), suffix=suffix, part_bytes=100)
    assert len(parts) == count
    assert [item.line for item in items] == list(range(1, 2001))
    assert {type(item) for item in items} == {Record, Reject}
    starts = [part.start for part in parts]
    assert max(b - a for a, b in pairwise(starts)) <= 1 + starts[-1] // (count - 1)


def test_file_that_cannot_be_decompressed_is_one_part(tmp_path):
    path = tmp_path / "a.jsonl.gz"
    path.write_bytes(b"no gzip at all" * 99)
    source = Source(path=str(path))
    assert split_inputs(list_files(source, where="path"), source, shard_bytes=1, part_bytes=1) == [
        (Part(list_files(source, where="path")[0]),)
    ]
