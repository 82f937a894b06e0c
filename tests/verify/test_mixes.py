from nextlong.runs import export as runs_export
from nextlong.verify.artefacts import Artefacts
from nextlong.verify.mixes import check_mixes


def export(runs, **asked):
    """Export and return the finished steps."""
    return runs_export.export(runs, **asked).done


def test_a_mix_is_verified_by_its_hashes(own_run, shorter_run):
    assert check_mixes(Artefacts(own_run)) == []
    done = export([own_run, shorter_run], formats=["parquet"], overrides=["workers=1"])
    (outcome,) = check_mixes(Artefacts(own_run))
    assert (outcome.result, outcome.checked) == ("pass", 3)  # index and offsets of the rows, one file of Parquet
    assert "hashes only" in outcome.note
    assert outcome.note.endswith(f"Verify each run: {own_run}@base, {shorter_run}@base")
    path = done["parquet"].files(".parquet")[0]
    path.write_bytes(path.read_bytes() + b"!")
    (outcome,) = check_mixes(Artefacts(own_run))
    assert outcome.breaches == 1
    assert f"{path.parent.name}/{path.name} has" in outcome.examples[0]
    (done["rows"].folder / "manifest.json").write_text("{}")
    (outcome,) = check_mixes(Artefacts(own_run))
    assert outcome.breaches == 2
    assert outcome.examples[0] == f"{done['rows'].folder.name}/manifest.json is not the manifest of a step"
