"""A run that finds too few sequences tries more documents, says so, and exports once."""

import io

import pytest
from rich.console import Console

from counted import total
from nextlong import pipeline
from nextlong.engine.progress import Lines

DROPPED = "dropped: too few negatives to reach target_tokens"
EMPTY = "dropped: too few negatives for compose.min_gap_tokens between its chunks"


@pytest.fixture(scope="module")
def run_dir(tmp_path_factory):
    """One directory for all, so that they embed once."""
    return tmp_path_factory.mktemp("few") / "run"


def run(recipe):
    """Return the finished steps and the lines that were told, without those of steps that were kept."""
    sink = io.StringIO()
    done = pipeline.run(recipe, reporter=Lines(Console(file=sink)))
    return done, [line for line in sink.getvalue().splitlines() if not line.startswith("kept: ")]


def test_more_documents_are_drawn_and_only_what_they_give_is_exported(recipe_for, run_dir):
    few = ["compose.max_uses=1", "compose.sequences=40"]
    done, lines = run(recipe_for(run_dir, *few))
    assert [line for line in lines if line.startswith("compose: ") and "documents" in line] == [
        f"compose: 12 of 40 sequences from 46 documents; 28 {DROPPED}; 6 {EMPTY}; drawing 116 of 160",
        f"compose: 13 of 40 sequences from 92 documents; 68 {DROPPED}; 11 {EMPTY}; drawing 160 of 160",
    ]
    assert (total(done["compose"], "sequences"), total(done["meta_documents"], "drawn")) == (13, 160)
    labels = [line.partition(":")[0] for line in lines]
    assert [labels.count(name) for name in ("ingest", "embed", "meta_documents", "draft", "rows", "parquet")] == [
        1,
        1,
        3,
        3,
        1,
        1,
    ]
    assert len([*run_dir.glob("*-rows-*")]) == 1
    assert [*done][-4:] == ["compose", "rows", "parquet", "jsonl"]

    again, lines = run(recipe_for(run_dir, *few))
    assert [line for line in lines if "of 40 sequences" not in line] == []
    assert {name: step.folder for name, step in again.items()} == {name: step.folder for name, step in done.items()}


def test_spare_drafts_are_tried_once_all_documents_are_drawn(recipe_for, run_dir):
    done, lines = run(recipe_for(run_dir, "compose.max_uses=9", "compose.sequences=122"))
    assert [line for line in lines if line.startswith("compose: ") and "documents" in line] == [
        f"compose: 109 of 122 sequences from 133 documents; 24 {DROPPED}; trying more of those drawn"
    ]
    assert total(done["named_chunks"], "drafts") == total(done["draft"], "drafts") == 160
    assert total(done["compose"], "sequences") == 119


def test_nothing_is_told_where_there_is_enough(recipe_for, run_dir):
    _, lines = run(recipe_for(run_dir))
    assert lines
    assert all(" done in " in line for line in lines)
