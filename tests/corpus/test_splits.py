"""How tasks share files, and what the steps of the corpus are made of."""

import gzip
import json
import random
import struct
import subprocess
import sys
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pyarrow as pa
import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st
from tests.support.compressed import COMPRESSORS
from tests.support.counted import counts_of
from tests.support.larger_cases import thorough

from nextlong import pipeline
from nextlong.corpus import splits as splits_module
from nextlong.corpus.splits import (
    _count_lines,
    _split_inputs,
    numbered,
    shard_bytes_of,
    whole_files,
)
from nextlong.engine.executor import SerialExecutor
from nextlong.engine.runner import open_done, run_steps
from nextlong.errors import CorpusError
from nextlong.reading.files import FilePart, InputFile
from nextlong.reading.formats import read_records
from nextlong.reading.listing import input_files, list_files
from nextlong.reading.records import Record, Reject
from nextlong.recipe import Ingest, Recipe, Source


@pytest.mark.parametrize(
    ("total", "shard"),
    [
        (0, 1_000_000),
        (32_000_000, 1_000_000),
        (320_000_000, 10_000_000),
        (10**12, 128_000_000),
    ],
)
def test_an_automatic_shard_is_a_32nd_between_1_and_128_mb(total, shard):
    ingest = Ingest(sources=[Source(path="a")])
    assert shard_bytes_of(ingest, text_bytes=total) == shard
    assert (
        shard_bytes_of(ingest.model_copy(update={"shard_mb": 2.5}), text_bytes=total)
        == 2_500_000
    )


def test_a_large_compressed_file_is_said_to_be_read_by_one_task(tmp_path, monkeypatch):
    monkeypatch.setattr("nextlong.corpus.splits._REPORTED_BYTES", 0)
    (tmp_path / "a.csv.gz").write_bytes(b"x" * 5000)
    sources = [Source(path=str(tmp_path))]
    files = [list_files(sources[0], where="path")]
    (told,) = whole_files(sources, files, shard_bytes=2000, workers=2)
    assert "a.csv.gz (0 MB) is compressed as a whole, so one task reads it" in told
    assert whole_files(sources, files, shard_bytes=2500, workers=2) == []
    assert whole_files(sources, files, shard_bytes=2000, workers=1) == []


def test_a_part_counts_as_much_as_it_is_of_its_file():
    lines = InputFile("a.jsonl", 1000, "v", "a.jsonl")
    packed = InputFile("c.jsonl.gz", 300, "v", "c.jsonl.gz")
    table = InputFile("b.parquet", 800, "v", "b.parquet")
    parts = [
        *(FilePart(lines, 0, 600), FilePart(lines, 600), FilePart(table)),
        FilePart(table, row_groups=(0, 3), share=0.75),
        FilePart(packed, 0, 5000, skips=True, share=0.5),
    ]
    assert [part.disk_bytes for part in parts] == [600, 400, 800, 600, 150]


@pytest.fixture
def text():
    lines = [
        json.dumps({"text": f"document {number} " + "word " * (number % 40)})
        for number in range(300)
    ]
    lines[7] = "broken"
    lines[150] = ""
    return "\n".join(lines).encode()


def ingested(folder, files, *, sources):
    """Ingest files in shards of 1 kB; return the names of the steps, the number of tasks, all documents and rejects."""
    folder.mkdir()
    for name, content in files.items():
        (folder / name).write_bytes(content)
    recipe = Recipe.from_dict(
        {
            "run_dir": str(folder / "run"),
            "ingest": {
                "sources": [
                    {"path": str(folder / source), "name": f"source {number}"}
                    for number, source in enumerate(sources)
                ],
                "shard_mb": 0.001,
                "max_reject_share": 0.5,
            },
            "tokenizer": {"train": 300},
            "compose": {"target_tokens": 1024},
        }
    )
    route = pipeline.route(recipe, input_files(recipe.ingest))
    steps = route[: 1 + [step.name for step in route].index("select")]
    (folder / "run").mkdir()
    done = run_steps(steps, run_dir=folder / "run", executor=SerialExecutor())
    tables = [
        [
            row
            for path in sorted(done["ingest"].folder.glob(files))
            for row in pa.ipc.open_file(path).read_all().to_pylist()
        ]
        for files in ("*.documents.arrow", "*.rejects.arrow")
    ]
    return list(done), len(counts_of(done["ingest"])), *tables


def test_large_file_in_parts_gives_the_same_documents_compressed_or_not(
    tmp_path, text, monkeypatch
):
    monkeypatch.setattr("nextlong.corpus.splits._SKIPPING_PART_BYTES", 1000)
    packed, parts = {"a.jsonl.gz": gzip.compress(text)}, {"a.jsonl": text}
    names, tasks, documents, rejects = ingested(
        tmp_path / "packed", packed, sources=packed
    )
    assert (names, tasks, len(documents)) == (["ingest", "select"], 4, 298)
    for row in (*documents, *rejects):
        row.update(
            {
                key: row[key].replace(".gz", "")
                for key in row.keys() & {"source_id", "file"}
            }
        )
    names, tasks, parted, parted_rejects = ingested(
        tmp_path / "parts", parts, sources=parts
    )
    text_bytes = sum(len(row["text"]) for row in documents)
    assert names == ["line_counts", "ingest", "select"]
    assert text_bytes // 1000 <= tasks <= text_bytes // 1000 + 2
    assert (parted, parted_rejects) == (documents, rejects)


def test_each_file_has_its_own_count_of_lines(tmp_path, text):
    files = {"a.jsonl": text, "b.jsonl": text, "c.jsonl": b'{"text":"small"}\n'}
    _, _, documents, _ = ingested(
        tmp_path / "several", files, sources=["a.jsonl", "[bc].jsonl"]
    )
    ids = [row["source_id"] for row in documents]
    assert ids[297:299] == ["a.jsonl:300", "b.jsonl:1"]
    assert ids[-2:] == ["b.jsonl:300", "c.jsonl:1"]


def test_parts_are_counted_in_text(tmp_path):
    rows = [{"text": "ten bytes.", "other": "x" * 990} for _ in range(300)]
    content = "".join(json.dumps(row) + "\n" for row in rows).encode()
    names, tasks, documents, _ = ingested(
        tmp_path / "in", {"a.jsonl": content}, sources=["a.jsonl"]
    )
    assert (names, tasks, len(documents)) == (
        ["line_counts", "ingest", "select"],
        3,
        300,
    )


# Parts of large files hold every line once, compressed or not


def sized(*sizes, suffix):
    return [
        InputFile(f"/f{i}.{suffix}", size, "", f"f{i}.{suffix}")
        for i, size in enumerate(sizes)
    ]


@pytest.mark.parametrize("suffix", ["csv.zst", "parquet", "txt"])
def test_small_files_share_a_task_and_a_big_one_has_its_own(suffix):
    tasks = _split_inputs(
        sized(4, 4, 4, 30, 1, 1, suffix=suffix),
        Source(path="/"),
        shard_bytes=10,
        part_bytes=10,
    )
    assert [[part.file.bytes for part in task] for task in tasks] == [
        [4, 4],
        [4],
        [30],
        [1, 1],
    ]


def test_big_file_of_plain_lines_is_read_by_several_tasks():
    tasks = _split_inputs(
        sized(4, 20, 31, 1, 1, suffix="jsonl"),
        Source(path="/"),
        shard_bytes=10,
        part_bytes=10,
    )
    assert [
        [(part.file.name, part.start, part.stop) for part in task] for task in tasks
    ] == [
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
    assert (
        len(
            _split_inputs(
                sized(30, suffix="data"), source, shard_bytes=10, part_bytes=10
            )
        )
        == 3
    )
    (remote,) = sized(30, suffix="jsonl")
    assert (
        len(
            _split_inputs(
                [replace(remote, path="memory://f0.jsonl")],
                source,
                shard_bytes=10,
                part_bytes=10,
            )
        )
        == 1
    )


@given(
    st.lists(st.integers(0, 50)),
    st.integers(1, 40),
    st.sampled_from(["jsonl", "jsonl.gz"]),
)
def test_tasks_hold_every_byte_once_in_order_within_the_limit(
    sizes, shard_bytes, suffix
):
    files = sized(*sizes, suffix=suffix)
    tasks = _split_inputs(
        files, Source(path="/"), shard_bytes=shard_bytes, part_bytes=2 * shard_bytes
    )
    parts = [part for task in tasks for part in task]
    assert [part.file for part in parts if not part.start] == files
    for file in files:
        own = [part for part in parts if part.file == file]
        assert [part.stop for part in own[:-1]] == [part.start for part in own[1:]]
        assert own[-1].stop in (None, file.bytes)
    assert all(task for task in tasks)
    assert all(
        len(task) == 1 or sum(part.file.bytes for part in task) <= shard_bytes
        for task in tasks
    )


COMPRESSED = {suffix[1:]: compress for suffix, compress in COMPRESSORS.items()}
MOST_PARTS = {"gz": 4, "zst": 8, "bz2": 1, "xz": 2, "lz4": 8}


def in_parts(folder, content, *, suffix, part_bytes):
    """Return the items of a compressed file, read by parts of at least so many bytes, and these."""
    path = folder / f"a.jsonl.{suffix}"
    path.write_bytes(COMPRESSED[suffix](content))
    source = Source(path=str(path))
    (file,) = list_files(source, where="path")
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(splits_module, "_SKIPPING_PART_BYTES", part_bytes)
        parts = [
            part
            for task in _split_inputs([file], source, shard_bytes=1, part_bytes=1)
            for part in task
        ]
    read = [
        item
        for part in parts
        for item in read_records(part, source, max_document_chars=1000)
    ]
    assert read == list(read_records(FilePart(file), source, max_document_chars=1000))
    return read, parts


@given(
    lines=st.lists(
        st.sampled_from(
            [b'{"text":"one"}', b"", b"{", b'{"text":"' + b"long " * 60 + b'"}']
        ),
        min_size=1,
    ),
    is_ended=st.booleans(),
    suffix=st.sampled_from(sorted(COMPRESSED)),
    part_bytes=st.integers(1, 60),
)
def test_parts_of_a_file_compressed_as_a_whole_hold_every_line_once(
    tmp_path_factory, lines, is_ended, suffix, part_bytes
):
    content = b"\n".join([b'{"text":"head"}', *lines]) + b"\n" * is_ended
    _, parts = in_parts(
        tmp_path_factory.mktemp("parts"), content, suffix=suffix, part_bytes=part_bytes
    )
    assert len(parts) <= MOST_PARTS[suffix]


@pytest.mark.parametrize(("suffix", "count"), MOST_PARTS.items())
def test_file_compressed_as_a_whole_is_shared_by_few_tasks_of_equal_size(
    tmp_path, suffix, count
):
    lines = [
        b"{"
        if n % 70 == 1
        else json.dumps({"text": f"{n * 7919} {'x' * (n % 90)}"}).encode()
        for n in range(2000)
    ]
    items, parts = in_parts(tmp_path, b"\n".join(lines), suffix=suffix, part_bytes=100)
    assert len(parts) == count
    assert [item.line for item in items] == list(range(1, 2001))
    assert {type(item) for item in items} == {Record, Reject}
    starts = [part.start for part in parts]
    for one, next_one in pairwise(starts):
        assert next_one - one <= 1 + starts[-1] // (count - 1)


def test_file_that_cannot_be_decompressed_is_one_part(tmp_path):
    path = tmp_path / "a.jsonl.gz"
    path.write_bytes(b"no gzip at all" * 99)
    source = Source(path=str(path))
    assert _split_inputs(
        list_files(source, where="path"), source, shard_bytes=1, part_bytes=1
    ) == [(FilePart(list_files(source, where="path")[0]),)]


SKIPPABLE = b"\x5e\x2a\x4d\x18" + struct.pack("<I", 5) + b"notes"


def framed(text, cuts, *, level=3, options=()):
    """Return the text in frames that end at the given bytes of it."""
    ends = sorted({cut for cut in cuts if 0 < cut < len(text)} | {len(text)})
    compressor = zstandard.ZstdCompressor(level=level, **dict(options))
    return [
        compressor.compress(text[start:end])
        for start, end in zip([0, *ends], ends, strict=False)
    ]


def listed(path):
    source = Source(path=str(path))
    return source, list_files(source, where="path")[0]


@given(
    sizes=st.lists(st.integers(0, 400_000), min_size=1, max_size=4),
    options=st.sampled_from(
        [(), (("write_checksum", True),), (("write_content_size", False),)]
    ),
    is_noise=st.booleans(),
)
def test_frames_are_found_where_they_were_written(
    tmp_path_factory, sizes, options, is_noise
):
    draw = random.Random(0)
    compressor = zstandard.ZstdCompressor(**dict(options))
    frames = [
        compressor.compress(draw.randbytes(size) if is_noise else b"x" * size)
        for size in sizes
    ]
    path = tmp_path_factory.mktemp("frames") / "a.zst"
    path.write_bytes(SKIPPABLE + b"".join(frame + SKIPPABLE for frame in frames))
    starts, at = [], len(SKIPPABLE)
    for frame in frames:
        starts.append(at)
        at += len(frame) + len(SKIPPABLE)
    assert splits_module._frame_bounds(InputFile(str(path), 0, "", path.name)) == (
        0,
        *starts[1:],
        at,
    )


@pytest.mark.parametrize(
    "damaged", [b"", b"x" * 99, b"\x28\xb5\x2f\xfd", b"\x28\xb5\x2f\xfd\xff\xff\xff"]
)
def test_what_is_no_whole_number_of_frames_has_none(tmp_path, damaged):
    whole = zstandard.ZstdCompressor().compress(b"text " * 99)
    for number, content in enumerate(
        (damaged, whole + whole[:-1], whole + damaged + b"x")
    ):
        (tmp_path / f"{number}.zst").write_bytes(content)
        assert (
            splits_module._frame_bounds(
                InputFile(str(tmp_path / f"{number}.zst"), 0, "", "")
            )
            == ()
        )


@pytest.mark.parametrize("is_stated", [True, False])
def test_the_decompressed_size_is_the_stated_one_or_estimated_from_the_head(
    tmp_path, monkeypatch, is_stated
):
    monkeypatch.setattr(splits_module, "_SKIPPING_PART_BYTES", 1)
    path = tmp_path / "a.jsonl.zst"
    content = random.Random(1).randbytes(2 << 20) + bytes(
        8 << 20
    )  # its head compresses less than the rest
    path.write_bytes(
        zstandard.ZstdCompressor(write_content_size=is_stated).compress(content)
    )
    _, second, *_ = splits_module._skipping_parts(listed(path)[1])
    assert (second.start == len(content) // 8) is is_stated
    assert second.start > 1 << 17


LISTED = """
import os, sys
from nextlong.errors import CorpusError
from nextlong.reading.listing import list_files
from nextlong.recipe import Source

(file,) = list_files(Source(path=sys.argv[1]), where="path")
"""
CUT_WHILE_COUNTED = """
from nextlong.corpus.splits import _count_lines

class CutPart:
    file, start = file, 0

    @property
    def stop(self):  # asked for once the file is open
        os.truncate(self.file.path, 0)
        return self.file.bytes

try:
    print(_count_lines(None, part=CutPart()))
except CorpusError as error:
    print(error)
"""
CUT_WHILE_FRAMES_ARE_FOUND = """
from nextlong.corpus import splits as parts

known = parts.zstandard.get_frame_parameters

def cut(head):
    os.truncate(file.path, 0)
    return known(head)

parts.zstandard.get_frame_parameters = cut
print(parts._frame_bounds(file))
"""


@pytest.mark.parametrize(
    ("name", "code", "told"),
    [
        ("a.jsonl.zst", CUT_WHILE_COUNTED, "a.jsonl.zst: it changed while"),
        *thorough(("a.jsonl", CUT_WHILE_COUNTED, "a.jsonl: it changed while")),
        ("a.jsonl.zst", CUT_WHILE_FRAMES_ARE_FOUND, "()"),
    ],
)
def test_a_file_that_is_cut_while_it_is_read_kills_no_process(
    tmp_path, name, code, told
):
    lines = b'{"text":"line"}\n' * 50_000
    (tmp_path / name).write_bytes(
        b"".join(framed(lines, [9, 99])) if name.endswith(".zst") else lines
    )
    ended = subprocess.run(
        [sys.executable, "-c", LISTED + code, tmp_path / name],
        check=False,
        capture_output=True,
        text=True,
    )
    assert (ended.returncode, ended.stderr) == (0, "")
    assert told in ended.stdout


def test_a_file_that_cannot_be_opened_has_no_frames(tmp_path, monkeypatch):
    path = tmp_path / "a.jsonl.zst"
    path.write_bytes(b"".join(framed(b'{"text":"x"}\n' * 99, [9])))
    source, file = listed(path)

    def refused(*_):
        raise PermissionError(13, "Permission denied", path)

    monkeypatch.setattr(splits_module.os, "pread", refused)
    monkeypatch.setattr(splits_module, "_SKIPPING_PART_BYTES", 1)
    assert all(
        part.skips
        for (part,) in _split_inputs([file], source, shard_bytes=1, part_bytes=1)
    )


@given(
    lines=st.lists(
        st.sampled_from(
            [
                b'{"text":"one"}',
                b"",
                b'{"text":2}',
                b"{",
                b'{"text":"' + b"long " * 60 + b'"}',
            ]
        )
    ),
    cuts=st.lists(st.integers(1, 900), max_size=8),
    is_ended=st.booleans(),
    part_bytes=st.integers(1, 200),
)
def test_parts_hold_every_line_once_under_its_own_number(
    tmp_path_factory, lines, cuts, is_ended, part_bytes
):
    text = b"\n".join([b'{"text":"head"}', *lines]) + b"\n" * is_ended
    path = tmp_path_factory.mktemp("parts") / "a.jsonl.zst"
    path.write_bytes(b"".join([SKIPPABLE, *framed(text, cuts)]))
    source, file = listed(path)
    splits = _split_inputs(
        [file], source, shard_bytes=part_bytes, part_bytes=part_bytes
    )
    framed_parts = [
        part for (part,) in splits if part.stop is not None and not part.skips
    ]
    counted = [_count_lines(None, part=part) for part in framed_parts]
    parts = [part for (part,) in numbered(splits, iter(counted))]
    items = [
        item
        for part in parts
        for item in read_records(part, source, max_document_chars=1000)
    ]
    assert items == list(read_records(FilePart(file), source, max_document_chars=1000))
    assert sum(part.begins_file for part in parts) == 1


def documents_of(tmp_path, name, frames, *, executor="serial", **conditions):
    if not (tmp_path / name).exists():
        (tmp_path / name).mkdir()
        (tmp_path / name / "a.jsonl.zst").write_bytes(b"".join(frames))
    plain = {
        "run_dir": str(tmp_path / f"run-{name}-{executor}"),
        "executor": executor,
        "workers": 2,
        "ingest": {
            "sources": [{"path": str(tmp_path / name), "name": "tides", **conditions}],
            "shard_mb": 0.01,
        },
        "chunk": {"max_chars": 256},
        "tokenizer": {"train": 300},
        "compose": {"target_tokens": 1024},
    }
    with pipeline.session(Recipe.from_dict(plain)) as session:
        session.run_before("chunk")
    (folder,) = Path(plain["run_dir"]).glob("*-ingest-*")
    done = open_done("ingest", folder)
    rows = [
        row
        for path in done.files(".documents.arrow")
        for row in pa.ipc.open_file(path).read_all().to_pylist()
    ]
    return len(done.manifest["parts"]), rows


def test_parts_give_the_documents_of_one_frame(tmp_path, monkeypatch):
    monkeypatch.setattr("nextlong.corpus.splits._SKIPPING_PART_BYTES", 1000)
    draw = random.Random(1)
    texts = [
        "\n".join(
            f"Line {n}.{k} {draw.random()} about tides and ropes." for k in range(20)
        )
        for n in range(80)
    ]
    text = b"".join(
        json.dumps({"id": f"d{n}", "text": text}).encode() + b"\n"
        for n, text in enumerate(texts)
    )
    parts, rows = documents_of(
        tmp_path, "parted", framed(text, range(5_000, len(text), 17_001))
    )
    whole_parts, whole_rows = documents_of(tmp_path, "whole", framed(text, []))
    assert parts > 3
    assert whole_parts == 8
    assert rows == whole_rows
    assert [row["text"] for row in rows] == texts


def test_processes_and_one_process_write_the_same_of_frames_and_conditions(
    tmp_path, hashes_of
):
    draw = random.Random(2)
    texts = [
        "\n".join(
            f"Line {n}.{k} {draw.random()} about tides and ropes." for k in range(20)
        )
        for n in range(120)
    ]
    lines = [
        {"id": f"d{n}", "text": text, "lang": draw.choice(["en", "de", None])}
        for n, text in enumerate(texts)
    ]
    text = b"".join(json.dumps(line).encode() + b"\n" for line in lines)
    frames = framed(text, range(5_000, len(text), 17_001))
    conditions = {"filter": "lang = 'en' OR lang IS NULL", "metadata": ["lang"]}
    ingested = [
        documents_of(tmp_path, "tides", frames, executor=executor, **conditions)
        for executor in ("serial", "local")
    ]
    assert ingested[0] == ingested[1]
    parts, rows = ingested[0]
    assert parts > 3
    assert [row["source_id"] for row in rows] == [
        line["id"] for line in lines if line["lang"] != "de"
    ]
    serial = hashes_of(tmp_path / "run-tides-serial")
    assert len(serial) > 20
    assert serial == hashes_of(tmp_path / "run-tides-local")


def test_one_frame_is_said_to_be_read_by_few_tasks(tmp_path, monkeypatch):
    monkeypatch.setattr("nextlong.corpus.splits._SKIPPING_PART_BYTES", 1000)
    monkeypatch.setattr("nextlong.corpus.splits._REPORTED_BYTES", 0)
    lines = b"".join(b'{"text":"%d"}\n' % n for n in range(40_000))
    (tmp_path / "one.jsonl.zst").write_bytes(
        zstandard.ZstdCompressor(level=1).compress(lines)
    )
    (tmp_path / "two.jsonl.zst").write_bytes(b"".join(framed(lines, [len(lines) // 2])))
    sources = [Source(path=str(tmp_path))]
    files = [list_files(sources[0], where="path")]
    (told,) = whole_files(sources, files, shard_bytes=2000, workers=9)
    assert (
        "one.jsonl.zst (0 MB) is compressed as a whole, so at most 8 tasks read it, each from its beginning"
        in told
    )
    assert whole_files(sources, files, shard_bytes=2000, workers=8) == []


def test_a_damaged_frame_stops_the_run_with_the_name_of_its_file(tmp_path):
    lines = b"".join(b'{"text":"%d"}\n' % (n * 7919) for n in range(40_000))
    frames = framed(
        lines,
        [len(lines) // 3, 2 * len(lines) // 3],
        options=[("write_checksum", True)],
    )
    frames[1] = (
        frames[1][:500] + bytes(200) + frames[1][700:]
    )  # its blocks are still as long as they say
    path = tmp_path / "a.jsonl.zst"
    path.write_bytes(b"".join(frames))
    source, file = listed(path)
    parts = [
        part
        for (part,) in _split_inputs([file], source, shard_bytes=1000, part_bytes=1000)
    ]
    assert len(parts) == 3
    assert _count_lines(None, part=parts[0]).lines > 0
    with pytest.raises(CorpusError, match=r"a\.jsonl\.zst: .*damaged"):
        _count_lines(None, part=parts[1])
