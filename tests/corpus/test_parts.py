from nextlong.corpus.parts import task_bytes, whole_files
from nextlong.inputs.files import InputFile, Part
from nextlong.inputs.listing import list_files
from nextlong.recipe import Source


def test_a_large_compressed_file_is_said_to_be_read_by_one_task(tmp_path, monkeypatch):
    monkeypatch.setattr("nextlong.corpus.parts._WORTH_TELLING_BYTES", 0)
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
        [(Part(lines, 0, 600),), (Part(lines, 600),)],
        [(Part(table, row_groups=(0, 3)),), (Part(table, row_groups=(3, 4)),), (Part(lines), Part(table))],
        [(Part(packed, 0, 5000, skips=True),), (Part(packed, 5000, skips=True),)],
    ]
    assert task_bytes(splits) == [600, 400, 600, 200, 1800, 150, 150]
