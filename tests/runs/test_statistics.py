import dataclasses
import json
import shutil
from dataclasses import replace

import pytest

import nextlong
from exported_runs import exported
from nextlong.artifacts import record
from nextlong.errors import RunError
from nextlong.runs import export as runs_export
from nextlong.runs import stats
from nextlong.runs.card import card_numbers
from nextlong.verify.files import check_files
from nextlong.verify.run_files import StoredRun


def test_statistics_are_measured_once_for_a_data_set_and_told_by_every_card(own_run):
    done = exported([own_run], formats=["parquet"])
    told = card_numbers(stats.read(done["statistics"]))
    assert told["sequences"] == "12 of 2,048 tokens"
    again = exported([own_run], formats=["mds"], overrides=["export.pack=4096"])
    assert again["statistics"].folder == done["statistics"].folder
    for name in (".", "parquet", "mds"):
        assert f"| uses of a chunk | {told['uses of a chunk']} |" in (own_run / "data" / name / "README.md").read_text()
    assert nextlong.open(own_run).steps["statistics"].folder == done["statistics"].folder


def test_what_the_step_keeps_is_what_a_new_count_gives_and_nothing_is_counted_twice(own_run, monkeypatch):
    exported([own_run], formats=["parquet"])
    run = nextlong.open(own_run)
    computed = stats.compute(run)
    monkeypatch.setattr(stats, "compute", lambda _: pytest.fail("counted again"))
    told = tuple(one.of(str(run)) for one in computed.warnings)  # `nextlong peek` with this run
    assert stats.measure(run) == replace(computed, warnings=told)


def test_a_run_measured_by_an_earlier_version_is_reported_by_the_new_statistics(own_run):
    written = runs_export.export([own_run], formats=["parquet"])
    folder = written.done["statistics"].folder
    earlier = folder.with_name("99-statistics-000000000000")
    shutil.copytree(folder, earlier)
    record.add_steps(written.runs[0].variant, {"statistics": earlier.name})
    again = runs_export.export([own_run], formats=["parquet"])
    assert again.runs[0].steps["statistics"].folder == folder


def test_statistics_of_another_form_name_the_file(own_run):
    done = exported([own_run], formats=["parquet"])
    (path,) = done["statistics"].files(".statistics.json")
    path.write_text(json.dumps({"method": "nextlong"}))
    with pytest.raises(RunError, match=rf"{path} is not what the step statistics writes"):
        stats.read(done["statistics"])


def test_a_flipped_card_and_cut_off_statistics_are_noticed(own_run):
    done = exported([own_run], formats=["parquet"])
    manifests, hashes = check_files(StoredRun(own_run))
    assert (manifests.examples, hashes.examples) == ([], [])
    card = own_run / "data" / "parquet" / "README.md"
    card.write_bytes(card.read_bytes().replace(b"12 sequences", b"13 sequences", 1))
    (path,) = done["statistics"].files(".statistics.json")
    path.write_bytes(path.read_bytes()[:-9])
    wrong = check_files(StoredRun(own_run))[1].examples
    assert len(wrong) == 2
    assert any(f"{card.parent.name}/README.md has the hash" in told for told in wrong)
    assert any(f"{path.parent.name}/{path.name} has" in told for told in wrong)


def test_the_card_tells_what_the_run_counts(shared_run):
    measured = stats.measure(nextlong.open(shared_run))
    told = card_numbers(measured)
    assert told["sequences"] == "12 of 2,048 tokens"
    assert told["negatives from the own document"] == "0"
    assert told["share of the meta-documents"].startswith(f"{measured.meta_share:.1%}")
    assert f"{measured.similarity.mean:.3f} on average" in told["cosine of a negative to its meta-chunk"]


def test_what_there_is_none_of_is_left_out(shared_run):
    measured = stats.measure(nextlong.open(shared_run))
    told = card_numbers(dataclasses.replace(measured, similarity=None, meta_share=0.0, encoder=None))
    assert told.keys().isdisjoint({"cosine of a negative to its meta-chunk", "share of the meta-documents", "encoder"})
