"""Tests."""

import json

from damage import breaches, files
from exported_runs import exported
from nextlong.verify.files import check_mixes
from nextlong.verify.run_files import StoredRun


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


def test_a_mix_is_verified_by_its_hashes(own_run, shorter_run):
    assert check_mixes(StoredRun(own_run)) == []
    done = exported([own_run, shorter_run], formats=["parquet"], overrides=["workers=1"])
    (outcome,) = check_mixes(StoredRun(own_run))
    assert (outcome.result, outcome.checked) == ("pass", 3)  # index and offsets of the rows, one file of Parquet
    assert "only hashes are checked" in outcome.note
    assert outcome.note.endswith(f"Verify each run: {own_run}@base, {shorter_run}@base")
    path = done["parquet"].files(".parquet")[0]
    path.write_bytes(path.read_bytes() + b"!")
    (outcome,) = check_mixes(StoredRun(own_run))
    assert outcome.breaches == 1
    assert f"{path.parent.name}/{path.name} has" in outcome.examples[0]
    (done["rows"].folder / "manifest.json").write_text("{}")
    (outcome,) = check_mixes(StoredRun(own_run))
    assert outcome.breaches == 2
    assert outcome.examples[0] == f"{done['rows'].folder.name}/manifest.json is not the manifest of a step"
