import json
import shutil
from pathlib import Path

import pytest

from damage import breaches, files


@pytest.fixture
def run(finished, tmp_path):
    """A copy to damage."""
    return Path(shutil.copytree(finished, tmp_path / "run"))


def test_a_changed_byte_and_a_missing_file_are_found_by_their_hashes(run):
    path = files(run, "draft", ".drafts.arrow")[0]
    raw = bytearray(path.read_bytes())
    raw[len(raw) // 2] ^= 1
    path.write_bytes(raw)
    assert set(breaches(run)) == {"hashes"}
    path.unlink()
    assert "is missing" in breaches(run)["hashes"]


def test_a_step_that_was_made_from_others_is_found(run):
    path = files(run, "compose", "manifest.json")[0]
    manifest = json.loads(path.read_text())
    manifest["inputs"]["draft"] = "0" * 12
    path.write_text(json.dumps(manifest))
    assert "made from draft 000000000000" in breaches(run)["manifests"]
