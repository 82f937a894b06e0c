"""A large zstd file of several frames is read by several tasks, and nothing but the time shows it."""

import json
import random
import struct
import subprocess
import sys

import pyarrow as pa
import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from nextlong import pipeline
from nextlong.corpus.parts import numbered, whole_files
from nextlong.errors import CorpusError
from nextlong.inputs import split
from nextlong.inputs.files import Part
from nextlong.inputs.json_lines import count_lines
from nextlong.inputs.listing import list_files
from nextlong.inputs.records import read_records
from nextlong.inputs.split import split_inputs
from nextlong.inputs.zstd_frames import content_bytes, frame_bounds
from nextlong.recipe import Recipe, Source
from nextlong.results import LineCountResult

SKIPPABLE = b"\x5e\x2a\x4d\x18" + struct.pack("<I", 5) + b"notes"


def framed(text, cuts, *, level=3, options=()):
    """Return the text in frames that end at the given bytes of it."""
    ends = sorted({cut for cut in cuts if 0 < cut < len(text)} | {len(text)})
    compressor = zstandard.ZstdCompressor(level=level, **dict(options))
    return [compressor.compress(text[start:end]) for start, end in zip([0, *ends], ends, strict=False)]


def listed(path):
    source = Source(path=str(path))
    return source, list_files(source, where="path")[0]


@given(
    sizes=st.lists(st.integers(0, 400_000), min_size=1, max_size=4),
    options=st.sampled_from([(), (("write_checksum", True),), (("write_content_size", False),)]),
    is_noise=st.booleans(),
)
def test_frames_are_found_where_they_were_written(tmp_path_factory, sizes, options, is_noise):
    draw = random.Random(0)
    compressor = zstandard.ZstdCompressor(**dict(options))
    frames = [compressor.compress(draw.randbytes(size) if is_noise else b"x" * size) for size in sizes]
    path = tmp_path_factory.mktemp("frames") / "a.zst"
    path.write_bytes(SKIPPABLE + b"".join(frame + SKIPPABLE for frame in frames))
    starts, at = [], len(SKIPPABLE)
    for frame in frames:
        starts.append(at)
        at += len(frame) + len(SKIPPABLE)
    assert frame_bounds(str(path), version="") == (0, *starts[1:], at)


@pytest.mark.parametrize("damaged", [b"", b"x" * 99, b"\x28\xb5\x2f\xfd", b"\x28\xb5\x2f\xfd\xff\xff\xff"])
def test_what_is_no_whole_number_of_frames_has_none(tmp_path, damaged):
    (tmp_path / "a.zst").write_bytes(damaged)
    assert frame_bounds(str(tmp_path / "a.zst"), version="") == ()
    whole = zstandard.ZstdCompressor().compress(b"text " * 99)
    (tmp_path / "b.zst").write_bytes(whole + whole[:-1])
    assert frame_bounds(str(tmp_path / "b.zst"), version="") == ()


@pytest.mark.parametrize("is_said", [True, False])
def test_a_frame_says_what_it_holds_or_not(tmp_path, is_said):
    (tmp_path / "a.zst").write_bytes(zstandard.ZstdCompressor(write_content_size=is_said).compress(b"text " * 99))
    assert content_bytes(str(tmp_path / "a.zst")) == (495 if is_said else None)
    (tmp_path / "a.zst").write_bytes(b"text")
    assert content_bytes(str(tmp_path / "a.zst")) is None


LISTED = """
import os, sys
from nextlong.errors import CorpusError
from nextlong.inputs.listing import list_files
from nextlong.recipe import Source

(file,) = list_files(Source(path=sys.argv[1]), where="path")
"""
CUT_WHILE_COUNTED = """
from nextlong.inputs.json_lines import count_lines

class CutPart:
    file, start = file, 0

    @property
    def stop(self):  # asked for once the file is open
        os.truncate(self.file.path, 0)
        return self.file.bytes

try:
    print(count_lines(CutPart()))
except CorpusError as error:
    print(error)
"""
CUT_WHILE_FRAMES_ARE_FOUND = """
from nextlong.inputs import zstd_frames

known = zstd_frames.zstandard.get_frame_parameters

def cut(head):
    os.truncate(file.path, 0)
    return known(head)

zstd_frames.zstandard.get_frame_parameters = cut
print(zstd_frames.frame_bounds(file.path, version=file.version))
"""


@pytest.mark.parametrize(
    ("name", "code", "told"),
    [
        ("a.jsonl", CUT_WHILE_COUNTED, "a.jsonl changed while it was read"),
        ("a.jsonl.zst", CUT_WHILE_COUNTED, "a.jsonl.zst changed while it was read"),
        ("a.jsonl.zst", CUT_WHILE_FRAMES_ARE_FOUND, "()"),
    ],
)
def test_a_file_that_is_cut_while_it_is_read_kills_no_process(tmp_path, name, code, told):
    lines = b'{"text":"line"}\n' * 50_000
    (tmp_path / name).write_bytes(b"".join(framed(lines, [9, 99])) if name.endswith(".zst") else lines)
    ended = subprocess.run(
        [sys.executable, "-c", LISTED + code, tmp_path / name], check=False, capture_output=True, text=True
    )
    assert (ended.returncode, ended.stderr) == (0, "")
    assert told in ended.stdout


def test_a_file_that_cannot_be_opened_has_no_frames(tmp_path, monkeypatch):
    path = tmp_path / "a.jsonl.zst"
    path.write_bytes(b"".join(framed(b'{"text":"x"}\n' * 99, [9])))
    source, file = listed(path)

    def refused(path, *, version):
        raise PermissionError(13, "Permission denied", path)

    monkeypatch.setattr(split, "frame_bounds", refused)
    monkeypatch.setattr(split, "_SKIPPING_PART_BYTES", 1)
    assert all(part.skips for (part,) in split_inputs([file], source, shard_bytes=1, part_bytes=1))


@given(
    lines=st.lists(
        st.sampled_from([b'{"text":"one"}', b"", b'{"text":2}', b"{", b'{"text":"' + b"long " * 60 + b'"}'])
    ),
    cuts=st.lists(st.integers(1, 900), max_size=8),
    is_ended=st.booleans(),
    part_bytes=st.integers(1, 200),
)
def test_parts_hold_every_line_once_under_its_own_number(tmp_path_factory, lines, cuts, is_ended, part_bytes):
    text = b"\n".join([b'{"text":"head"}', *lines]) + b"\n" * is_ended
    path = tmp_path_factory.mktemp("parts") / "a.jsonl.zst"
    path.write_bytes(b"".join([SKIPPABLE, *framed(text, cuts)]))
    source, file = listed(path)
    splits = split_inputs([file], source, shard_bytes=part_bytes, part_bytes=part_bytes)
    framed_parts = [part for (part,) in splits if part.stop is not None and not part.skips]
    counted = [LineCountResult(**count_lines(part)._asdict()) for part in framed_parts]
    parts = [part for (part,) in numbered(splits, iter(counted))]
    items = [item for part in parts for item in read_records(part, source, max_document_chars=1000)]
    assert items == list(read_records(Part(file), source, max_document_chars=1000))
    assert sum(part.begins_file for part in parts) == 1


def documents_of(tmp_path, name, frames, *, executor="serial", **conditions):
    if not (tmp_path / name).exists():
        (tmp_path / name).mkdir()
        (tmp_path / name / "a.jsonl.zst").write_bytes(b"".join(frames))
    plain = {
        "run_dir": str(tmp_path / f"run-{name}-{executor}"),
        "executor": executor,
        "workers": 2,
        "ingest": {"sources": [{"path": str(tmp_path / name), "name": "tides", **conditions}], "shard_mb": 0.01},
        "chunk": {"max_chars": 256},
        "tokenizer": {"train": 300},
        "compose": {"method": "standard", "sequences": 3, "target_tokens": 1024},  # any: what is read is the matter
    }
    done = pipeline.run(Recipe.from_dict(plain))["ingest"]
    rows = [row for path in done.files(".documents.arrow") for row in pa.ipc.open_file(path).read_all().to_pylist()]
    return len(done.manifest["parts"]), rows


def test_a_run_gives_the_documents_of_one_frame(tmp_path, monkeypatch):
    monkeypatch.setattr("nextlong.inputs.split._SKIPPING_PART_BYTES", 1000)
    draw = random.Random(1)
    texts = ["\n".join(f"Line {n}.{k} {draw.random()} about tides and ropes." for k in range(20)) for n in range(80)]
    text = b"".join(json.dumps({"id": f"d{n}", "text": text}).encode() + b"\n" for n, text in enumerate(texts))
    parts, rows = documents_of(tmp_path, "parted", framed(text, range(5_000, len(text), 17_001)))
    whole_parts, whole_rows = documents_of(tmp_path, "whole", framed(text, []))
    assert parts > 3
    assert whole_parts == 8
    assert rows == whole_rows
    assert [row["text"] for row in rows] == texts


def test_processes_and_one_process_write_the_same_of_frames_and_conditions(tmp_path, hashes_of):
    draw = random.Random(2)
    texts = ["\n".join(f"Line {n}.{k} {draw.random()} about tides and ropes." for k in range(20)) for n in range(120)]
    lines = [{"id": f"d{n}", "text": text, "lang": draw.choice(["en", "de", None])} for n, text in enumerate(texts)]
    text = b"".join(json.dumps(line).encode() + b"\n" for line in lines)
    frames = framed(text, range(5_000, len(text), 17_001))
    conditions = {"where": "lang = 'en' OR lang IS NULL", "keep": ["lang"]}
    ingested = [
        documents_of(tmp_path, "tides", frames, executor=executor, **conditions) for executor in ("serial", "local")
    ]
    assert ingested[0] == ingested[1]
    parts, rows = ingested[0]
    assert parts > 3
    assert [row["source_id"] for row in rows] == [line["id"] for line in lines if line["lang"] != "de"]
    serial = hashes_of(tmp_path / "run-tides-serial")
    assert len(serial) > 20
    assert serial == hashes_of(tmp_path / "run-tides-local")


def test_one_frame_is_said_to_be_read_by_few_tasks(tmp_path, monkeypatch):
    monkeypatch.setattr("nextlong.inputs.split._SKIPPING_PART_BYTES", 1000)
    monkeypatch.setattr("nextlong.corpus.parts._WORTH_TELLING_BYTES", 0)
    lines = b"".join(b'{"text":"%d"}\n' % n for n in range(40_000))
    (tmp_path / "one.jsonl.zst").write_bytes(zstandard.ZstdCompressor(level=1).compress(lines))
    (tmp_path / "two.jsonl.zst").write_bytes(b"".join(framed(lines, [len(lines) // 2])))
    sources = [Source(path=str(tmp_path))]
    files = [list_files(sources[0], where="path")]
    (told,) = whole_files(sources, files, shard_bytes=2000, workers=9)
    assert "one.jsonl.zst (0 MB) is compressed as a whole, so at most 8 tasks read it, each from its beginning" in told
    assert whole_files(sources, files, shard_bytes=2000, workers=8) == []


def test_a_damaged_frame_stops_the_run_with_the_name_of_its_file(tmp_path):
    lines = b"".join(b'{"text":"%d"}\n' % (n * 7919) for n in range(40_000))
    frames = framed(lines, [len(lines) // 3, 2 * len(lines) // 3], options=[("write_checksum", True)])
    frames[1] = frames[1][:500] + bytes(200) + frames[1][700:]  # its blocks are still as long as they say
    path = tmp_path / "a.jsonl.zst"
    path.write_bytes(b"".join(frames))
    source, file = listed(path)
    parts = [part for (part,) in split_inputs([file], source, shard_bytes=1000, part_bytes=1000)]
    assert len(parts) == 3
    assert count_lines(parts[0]).lines > 0
    with pytest.raises(CorpusError, match=r"a\.jsonl\.zst ends early or is damaged"):
        count_lines(parts[1])
