"""How tasks share files, and what the steps of the corpus are made of."""

import gzip
import json

import pyarrow as pa
import pytest

from counted import counts_of
from nextlong import pipeline
from nextlong.corpus.splits import shard_bytes_for, task_bytes, whole_files
from nextlong.engine.executor import SerialExecutor
from nextlong.engine.runner import run_steps
from nextlong.reading.files import FilePart, InputFile
from nextlong.reading.known_files import input_files
from nextlong.reading.listing import list_files
from nextlong.recipe import Ingest, Recipe, Source


@pytest.mark.parametrize(
    ("total", "shard"), [(0, 1_000_000), (32_000_000, 1_000_000), (320_000_000, 10_000_000), (10**12, 128_000_000)]
)
def test_an_automatic_shard_is_a_32nd_between_1_and_128_mb(total, shard):
    ingest = Ingest(sources=[Source(path="a")])
    assert shard_bytes_for(ingest, total) == shard
    assert shard_bytes_for(ingest.model_copy(update={"shard_mb": 2.5}), total) == 2_500_000


def test_a_large_compressed_file_is_said_to_be_read_by_one_task(tmp_path, monkeypatch):
    monkeypatch.setattr("nextlong.corpus.splits._WORTH_TELLING_BYTES", 0)
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
    splits = [
        [(FilePart(lines, 0, 600),), (FilePart(lines, 600),)],
        [
            (FilePart(table, row_groups=(0, 3)),),
            (FilePart(table, row_groups=(3, 4)),),
            (FilePart(lines), FilePart(table)),
        ],
        [(FilePart(packed, 0, 5000, skips=True),), (FilePart(packed, 5000, skips=True),)],
    ]
    assert task_bytes(splits) == [600, 400, 600, 200, 1800, 150, 150]


@pytest.fixture
def text():
    lines = [json.dumps({"text": f"document {number} " + "word " * (number % 40)}) for number in range(300)]
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
                    {"path": str(folder / source), "name": f"source {number}"} for number, source in enumerate(sources)
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


def test_large_file_in_parts_gives_the_same_documents_compressed_or_not(tmp_path, text, monkeypatch):
    monkeypatch.setattr("nextlong.reading.parts._SKIPPING_PART_BYTES", 1000)
    packed, parts = {"a.jsonl.gz": gzip.compress(text)}, {"a.jsonl": text}
    names, tasks, documents, rejects = ingested(tmp_path / "packed", packed, sources=packed)
    assert (names, tasks, len(documents)) == (["ingest", "select"], 4, 298)
    for row in (*documents, *rejects):
        row.update({key: row[key].replace(".gz", "") for key in row.keys() & {"source_id", "file"}})
    names, tasks, parted, parted_rejects = ingested(tmp_path / "parts", parts, sources=parts)
    text_bytes = sum(len(row["text"]) for row in documents)
    assert names == ["line_counts", "ingest", "select"]
    assert text_bytes // 1000 <= tasks <= text_bytes // 1000 + 2
    assert (parted, parted_rejects) == (documents, rejects)


def test_each_file_has_its_own_count_of_lines(tmp_path, text):
    files = {"a.jsonl": text, "b.jsonl": text, "c.jsonl": b'{"text":"small"}\n'}
    _, _, documents, _ = ingested(tmp_path / "several", files, sources=["a.jsonl", "[bc].jsonl"])
    ids = [row["source_id"] for row in documents]
    assert ids[297:299] == ["a.jsonl:300", "b.jsonl:1"]
    assert ids[-2:] == ["b.jsonl:300", "c.jsonl:1"]


def test_parts_are_counted_in_text(tmp_path):
    rows = [{"text": "ten bytes.", "other": "x" * 990} for _ in range(300)]
    content = "".join(json.dumps(row) + "\n" for row in rows).encode()
    names, tasks, documents, _ = ingested(tmp_path / "in", {"a.jsonl": content}, sources=["a.jsonl"])
    assert (names, tasks, len(documents)) == (["line_counts", "ingest", "select"], 3, 300)
