import shutil
from pathlib import Path

import pytest

from damage import (
    change_rows,
    files,
)
from nextlong.verify.checks import verify


@pytest.fixture
def run(finished, tmp_path):
    """A copy to damage."""
    return Path(shutil.copytree(finished, tmp_path / "run"))


def breaches(run, **options):
    """Return what each check that found a breach says first."""
    return {outcome.check: outcome.examples[0] for outcome in verify(run, **options) if outcome.breaches}


def test_an_altered_document(run):
    def alter(rows):
        rows[0]["text"] = "Z" + rows[0]["text"][1:]

    change_rows(files(run, "ingest", ".documents.arrow")[0], alter)
    assert "document 0 has the hash" in breaches(run)["documents"]


def test_chunks_with_a_gap(run):
    def alter(rows):
        rows[0]["end"] -= 1

    change_rows(files(run, "chunk", ".chunks.arrow")[0], alter)
    assert "document 0: " in breaches(run)["chunks tile documents"]
