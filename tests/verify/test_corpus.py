import shutil
from pathlib import Path

import pytest

from damage import breaches, change_rows, files


@pytest.fixture
def run(finished, tmp_path):
    """A copy to damage."""
    return Path(shutil.copytree(finished, tmp_path / "run"))


def test_an_altered_document(run):
    def alter(rows):
        rows[0]["text"] = "Z" + rows[0]["text"][1:]

    change_rows(files(run, "ingest", ".documents.arrow")[0], alter)
    assert "document 0 has the hash" in breaches(run, "documents and chunks")["documents"]


def test_chunks_with_a_gap(run):
    def alter(rows):
        rows[0]["end"] -= 1

    change_rows(files(run, "chunk", ".chunks.arrow")[0], alter)
    assert "document 0: " in breaches(run, "documents and chunks")["chunks tile documents"]
