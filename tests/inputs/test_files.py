"""Sources: which files a path reaches, how they are grouped, and how much text they are taken to hold."""

import gzip
import json
import os
import sys
from dataclasses import replace

import fsspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from nextlong.errors import CorpusError
from nextlong.inputs.files import InputFile
from nextlong.inputs.listing import list_files
from nextlong.inputs.sizes import auto_shard_bytes, estimate_text_bytes
from nextlong.inputs.split import split_inputs
from nextlong.recipe import Source

WHERE = "ingest.sources[0].path"


def listed(path, **options):
    return list_files(Source(path=str(path), **options), where=WHERE)


def names(path, **options):
    return [file.name for file in listed(path, **options)]


def write(path, content="{}\n"):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return path


def save_like_datasets(folder, texts, *, state=None):
    folder.mkdir(parents=True)
    table = pa.table({"text": texts})
    with (
        pa.OSFile(str(folder / "data-00000-of-00001.arrow"), "wb") as sink,
        pa.ipc.new_stream(sink, table.schema) as writer,
    ):
        writer.write_table(table)
    described = {"_data_files": [{"filename": "data-00000-of-00001.arrow"}], "_fingerprint": "f", "_split": None}
    (folder / "state.json").write_text(json.dumps({**described, **(state or {})}))
    (folder / "dataset_info.json").write_text("{}")


def test_single_file_has_absolute_path_size_and_base_name(tmp_path, monkeypatch):
    write(tmp_path / "a.jsonl", '{"text":"x"}\n')
    monkeypatch.chdir(tmp_path)
    (file,) = listed("a.jsonl")
    assert (file.path, file.bytes, file.name) == (str(tmp_path / "a.jsonl"), 13, "a.jsonl")


def test_folder_is_read_below_sorted_and_without_hidden_or_side_files(tmp_path):
    for name in (
        "b.jsonl",
        "a/z.parquet",
        "a/c.txt",
        ".hidden.jsonl",
        ".git/x.jsonl",
        "README.md",
        "dataset_info.json",
        "x.bin",
    ):
        write(tmp_path / name)
    assert names(tmp_path) == ["a/c.txt", "a/z.parquet", "b.jsonl"]


def test_folder_of_plain_text_keeps_its_readme(tmp_path):
    write(tmp_path / "README.md")
    write(tmp_path / "b.txt.gz", gzip.compress(b"x"))
    assert names(tmp_path) == ["README.md", "b.txt.gz"]


def test_glob_names_are_relative_to_its_fixed_part(tmp_path):
    for name in ("x/one.jsonl", "y/two.jsonl", "y/three.txt", "y/._two.jsonl"):
        write(tmp_path / name)
    assert names(tmp_path / "*" / "*.jsonl") == ["x/one.jsonl", "y/two.jsonl"]


def test_file_whose_name_looks_like_a_glob_is_that_file(tmp_path):
    write(tmp_path / "data[1].jsonl")
    write(tmp_path / "data1.jsonl")
    assert names(tmp_path / "data[1].jsonl") == ["data[1].jsonl"]


def test_format_in_the_recipe_covers_files_of_any_name(tmp_path):
    write(tmp_path / "part-00000")
    assert names(tmp_path / "part-*", format="jsonl") == ["part-00000"]


def test_saved_dataset_gives_its_data_files_and_no_cache(tmp_path):
    save_like_datasets(tmp_path / "ds", ["x"])
    write(tmp_path / "ds" / "cache-1234.arrow", b"left behind by map")
    assert names(tmp_path / "ds") == ["data-00000-of-00001.arrow"]


def test_saved_dataset_dict_gives_every_split(tmp_path):
    save_like_datasets(tmp_path / "dd" / "train", ["x"])
    save_like_datasets(tmp_path / "dd" / "test", ["y"])
    write(tmp_path / "dd" / "dataset_dict.json", '{"splits": ["train", "test"]}')
    assert names(tmp_path / "dd") == ["test/data-00000-of-00001.arrow", "train/data-00000-of-00001.arrow"]


@pytest.mark.parametrize("sign", ["state", "file"])
def test_saved_dataset_with_indices_is_refused_with_its_cure(tmp_path, sign):
    save_like_datasets(
        tmp_path / "ds", ["x"], state={"_indices_files": [{"filename": "i.arrow"}]} if sign == "state" else {}
    )
    if sign == "file":
        write(tmp_path / "ds" / "indices.arrow", b"x")
    with pytest.raises(CorpusError, match=r"flatten_indices\(\)"):
        listed(tmp_path / "ds")


def test_saved_dataset_with_a_missing_file_is_refused(tmp_path):
    save_like_datasets(tmp_path / "ds", ["x"])
    (tmp_path / "ds" / "data-00000-of-00001.arrow").unlink()
    with pytest.raises(CorpusError, match="data-00000-of-00001.arrow, which is not there"):
        listed(tmp_path / "ds")


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("missing.jsonl", "missing.jsonl' does not exist"),
        ("*.parquet", r"\*.parquet' matches no file"),
        ("*.bin", "no file of a known format, only such as 'x.bin'"),
        ("x.bin", "no file of a known format"),
        ("empty", "empty' is an empty folder"),
    ],
)
def test_path_that_reaches_nothing_names_the_key_and_the_value(tmp_path, path, message):
    write(tmp_path / "x.bin")
    (tmp_path / "empty").mkdir()
    with pytest.raises(CorpusError, match=message) as caught:
        listed(tmp_path / path)
    assert str(caught.value).startswith(f"{WHERE}=")


def test_unknown_protocol_is_named():
    with pytest.raises(CorpusError, match="nonsense"):
        listed("nonsense://bucket/x.jsonl")


def test_missing_package_for_a_known_protocol_names_the_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "s3fs", None)  # as if it were not installed
    with pytest.raises(CorpusError, match=r"pip install 'nextlong\[s3\]'"):
        listed("s3://bucket/x.jsonl")


def test_memory_file_system_lists_full_urls():
    fs = fsspec.filesystem("memory")
    fs.pipe("/listing/b.jsonl", b"{}\n")
    fs.pipe("/listing/sub/a.jsonl", b"{}\n")
    files = listed("memory://listing")
    assert [(file.path, file.name) for file in files] == [
        ("memory:///listing/b.jsonl", "b.jsonl"),
        ("memory:///listing/sub/a.jsonl", "sub/a.jsonl"),
    ]
    assert [file.name for file in listed("memory://listing/*.jsonl")] == ["b.jsonl"]


def test_identity_changes_with_content_of_equal_size(tmp_path):
    path = write(tmp_path / "a.txt", "one")
    os.utime(path, ns=(0, 1_000_000_000))
    (before,) = listed(path)
    write(path, "two")
    os.utime(path, ns=(0, 2_000_000_000))
    (after,) = listed(path)
    assert before.bytes == after.bytes
    assert before.version != after.version


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


@pytest.mark.parametrize(
    ("total", "shard"), [(0, 1_000_000), (32_000_000, 1_000_000), (320_000_000, 10_000_000), (10**12, 128_000_000)]
)
def test_auto_shard_is_a_32nd_between_1_and_128_mb(total, shard):
    assert auto_shard_bytes(total) == shard


def lines_of(count):
    return "".join(
        json.dumps({"text": f"{i:04d} " + "abcdefgh " * (i % 7 + 20), "meta": "m" * 50}) + "\n" for i in range(count)
    )


def text_bytes_of(count):
    return sum(5 + 9 * (i % 7 + 20) for i in range(count))


@pytest.mark.parametrize("suffix", ["", ".gz", ".zst"])
@pytest.mark.parametrize("count", [50, 4000])
def test_estimate_of_lines_counts_only_the_text_column(tmp_path, suffix, count):
    compress = {"": bytes, ".gz": gzip.compress, ".zst": zstandard.ZstdCompressor().compress}[suffix]
    write(tmp_path / f"a.jsonl{suffix}", compress(lines_of(count).encode()))
    estimate = estimate_text_bytes(listed(tmp_path), Source(path=str(tmp_path)))
    assert estimate == pytest.approx(text_bytes_of(count), rel=0.01)


def test_estimate_of_parquet_arrow_and_text(tmp_path):
    texts = [f"{i} " * 200 for i in range(500)]
    table = pa.table({"text": texts, "noise": [os.urandom(900) for _ in texts]})
    total = sum(map(len, texts))
    pq.write_table(table, write(tmp_path / "p" / "a.parquet"), use_dictionary=False)
    with pa.OSFile(str(write(tmp_path / "a" / "a.arrow")), "wb") as sink, pa.ipc.new_file(sink, table.schema) as writer:
        writer.write_table(table)
    write(tmp_path / "t" / "a.txt.gz", gzip.compress("".join(texts).encode()))
    for folder in "pat":
        path = tmp_path / folder
        assert estimate_text_bytes(listed(path), Source(path=str(path))) == pytest.approx(total, rel=0.05)


def test_estimate_of_a_damaged_file_is_its_size(tmp_path):
    write(tmp_path / "a.parquet", b"x" * 1000)
    write(tmp_path / "a.jsonl.zst", b"y" * 500)
    assert estimate_text_bytes(listed(tmp_path), Source(path=str(tmp_path))) == 1500
