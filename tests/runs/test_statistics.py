import json

import pytest

import nextlong
from nextlong.runs import export as runs_export
from nextlong.verify.artefacts import Artefacts
from nextlong.verify.files import check_files


def export(runs, **asked):
    """Export and return the finished steps."""
    return runs_export.export(runs, **asked).done


@pytest.fixture(scope="module")
def sequences(shared_run):
    return {sequence.id: sequence.input_ids.tolist() for sequence in nextlong.open(shared_run).sequences()}


def test_statistics_are_measured_once_for_a_data_set_and_told_by_every_card(own_run):
    done = export([own_run], formats=["parquet"])
    (path,) = done["statistics"].files(".statistics.json")
    told = json.loads(path.read_text("utf-8"))["numbers"]
    assert told["sequences"] == "12 of 2,048 tokens"
    again = export([own_run], formats=["mds"], overrides=["export.pack=4096"])
    assert again["statistics"].folder == done["statistics"].folder
    for name in (".", "parquet", "mds"):
        assert f"| uses of a chunk | {told['uses of a chunk']} |" in (own_run / "data" / name / "README.md").read_text()
    assert nextlong.open(own_run).steps["statistics"].folder == done["statistics"].folder


def test_a_flipped_card_and_cut_off_statistics_are_noticed(own_run):
    done = export([own_run], formats=["parquet"])
    manifests, hashes = check_files(Artefacts(own_run))
    assert (manifests.examples, hashes.examples) == ([], [])
    card = own_run / "data" / "parquet" / "README.md"
    card.write_bytes(card.read_bytes().replace(b"12 sequences", b"13 sequences", 1))
    (path,) = done["statistics"].files(".statistics.json")
    path.write_bytes(path.read_bytes()[:-9])
    wrong = check_files(Artefacts(own_run))[1].examples
    assert len(wrong) == 2
    assert any(f"{card.parent.name}/README.md has the hash" in told for told in wrong)
    assert any(f"{path.parent.name}/{path.name} has" in told for told in wrong)
