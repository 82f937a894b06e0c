from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nextlong.inputs.files import InputFile
from nextlong.inputs.split import split_inputs
from nextlong.recipe import Source


def sized(*sizes, suffix):
    return [InputFile(f"/f{i}.{suffix}", size, "", f"f{i}.{suffix}") for i, size in enumerate(sizes)]


@pytest.mark.parametrize("suffix", ["jsonl.zst", "parquet", "txt"])
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
