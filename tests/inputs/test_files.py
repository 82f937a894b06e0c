"""Sources: which files a path reaches, how they are grouped, and how much text they are taken to hold."""

import os

from nextlong.inputs.listing import list_files
from nextlong.recipe import Source

WHERE = "ingest.sources[0].path"


def listed(path, **options):
    return list_files(Source(path=str(path), **options), where=WHERE)


def write(path, content="{}\n"):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return path


def test_identity_changes_with_content_of_equal_size(tmp_path):
    path = write(tmp_path / "a.txt", "one")
    os.utime(path, ns=(0, 1_000_000_000))
    (before,) = listed(path)
    write(path, "two")
    os.utime(path, ns=(0, 2_000_000_000))
    (after,) = listed(path)
    assert before.bytes == after.bytes
    assert before.version != after.version
