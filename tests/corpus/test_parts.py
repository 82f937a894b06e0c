from nextlong.corpus.parts import whole_files
from nextlong.inputs.listing import list_files
from nextlong.recipe import Source


def test_a_large_compressed_file_is_said_to_be_read_by_one_task(tmp_path):
    (tmp_path / "a.jsonl.gz").write_bytes(b"x" * 5000)
    sources = [Source(path=str(tmp_path))]
    files = [list_files(sources[0], where="path")]
    (told,) = whole_files(sources, files, shard_bytes=2000)
    assert "a.jsonl.gz (0 MB) is compressed as a whole, so one task reads it" in told
    assert whole_files(sources, files, shard_bytes=2500) == []
