"""A run that finds too few sequences tries more documents, says so, and exports once."""

import io
import json
import random
import re

import pytest
from rich.console import Console

from counted import total
from nextlong import pipeline
from nextlong.engine.progress import Lines
from nextlong.errors import CorpusError

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
    return done, [line for line in sink.getvalue().splitlines() if not line.startswith("reused: ")]


def test_more_documents_are_drawn_and_only_what_they_give_is_exported(recipe_for, run_dir):
    few = ["compose.max_uses=1", "compose.sequences=40"]
    done, lines = run(recipe_for(run_dir, *few))
    told = [line for line in lines if line.startswith("compose: ") and "documents" in line]
    begin = r"compose: \d+ of 40 sequences from {} documents; "
    assert len(told) == 2
    assert re.fullmatch(rf"{begin.format(46)}\d+ {DROPPED}; \d+ {EMPTY}; sampling 116 of 160", told[0])
    assert re.fullmatch(rf"{begin.format(92)}\d+ {DROPPED}; \d+ {EMPTY}; sampling 160 of 160", told[1])
    assert 5 < total(done["compose"], "sequences") < 40
    assert total(done["meta_documents"], "drawn") == 160
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
    (told,) = [line for line in lines if line.startswith("compose: ") and "documents" in line]
    assert re.fullmatch(
        rf"compose: 1\d\d of 122 sequences from 133 documents; .*\d+ {DROPPED}; .*drafting more of the sampled documents",
        told,
    )
    assert total(done["referenced_chunks"], "drafts") == total(done["draft"], "drafts") == 160
    assert 100 < total(done["compose"], "sequences") < 160


def test_nothing_is_told_where_there_is_enough(recipe_for, run_dir):
    _, lines = run(recipe_for(run_dir))
    assert lines
    assert all(" done in " in line for line in lines)


def test_near_identical_pages_are_refused_after_a_sample_and_the_cure_is_named(recipe_for, tmp_path):
    draw = random.Random(7)
    words = [f"w{number}" for number in range(400)]
    page = [draw.choices(words, k=12) for _ in range(24)]
    rows = []
    for number in range(60):
        copy = [line[:] for line in page]
        for _ in range(3):
            copy[draw.randrange(24)][draw.randrange(12)] = draw.choice(words)
        rows.append(json.dumps({"id": str(number), "text": "\n".join(map(" ".join, copy))}) + "\n")
    (tmp_path / "pages.jsonl").write_text("".join(rows), encoding="utf-8")
    source = json.dumps([{"path": str(tmp_path / "pages.jsonl")}])
    recipe = recipe_for(
        tmp_path / "run", f"ingest.sources={source}", "compose.sequences=20", "compose.target_tokens=2048"
    )
    with pytest.raises(CorpusError, match="near-identical documents .*; set ingest.dedup: minhash to keep one of each"):
        pipeline.run(recipe)
    assert len([*(tmp_path / "run").glob("*-draft-*")]) == 1
