import sys

import fsspec
import pytest

from nextlong.errors import CorpusError
from nextlong.inputs.listing import list_files
from nextlong.recipe import Source

WHERE = "ingest.sources[0].path"


def listed(path, **options):
    return list_files(Source(path=str(path), **options), where=WHERE)


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
