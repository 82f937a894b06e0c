"""Corpus steps: a large file of plain lines is read in parts, with the documents and ids of the file read whole."""

import gzip
import json

import pyarrow as pa
import pytest

from counted import counts_of
from nextlong import pipeline
from nextlong.engine.runner import run_steps
from nextlong.engine.serial import SerialExecutor
from nextlong.inputs.remembered import input_files
from nextlong.recipe import Recipe


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
    route = pipeline.route(recipe, input_files(recipe))
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
    monkeypatch.setattr("nextlong.inputs.split._SKIPPING_PART_BYTES", 1000)
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
