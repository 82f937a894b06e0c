"""Scores of whole documents: those of SPLiCe's trees, of which the sequence alone says which document was found for which."""

import shutil
from pathlib import Path

import numpy as np
import pytest

from damage import change_sequence
from nextlong import pipeline
from nextlong.schemas import NO_CHUNK
from nextlong.verify.artefacts import Artefacts
from nextlong.verify.document_scores import check_document_scores

SIZES = (
    "compose.method=splice",
    "compose.sequences=3",
    "compose.target_tokens=2048",
    "workers=1",
    "export.formats=[parquet]",
)


@pytest.fixture(scope="module")
def spliced(recipe_for, tmp_path_factory):
    """Runs whose trees are paths, and wide, and reversed; read-only."""
    folder = tmp_path_factory.mktemp("spliced") / "run"
    made = {}
    for name, options in (("path", ()), ("wide", ("splice.neighbours=3",)), ("reverse", ("splice.order=reverse",))):
        pipeline.run(recipe_for(folder, *SIZES, *options, f"name={name}"))
        made[name] = folder
    return made


def judged(folder, name):
    return check_document_scores(Artefacts(Path(f"{folder}@{name}")))


@pytest.mark.parametrize("name", ["path", "wide"])
def test_the_scores_of_a_sound_run_pass(spliced, name):
    outcome = judged(spliced[name], name)
    assert (outcome.result, outcome.examples) == ("pass", [])
    assert outcome.checked > 10


def test_a_score_of_no_other_document_is_found(spliced, tmp_path, recipe_for):
    def alter(row):
        spans = [span for span, chunk in enumerate(row["chunk_id"]) if chunk != NO_CHUNK]
        scored = next(span for span in spans if not np.isnan(row["score"][span]))
        for span in spans:
            if row["score"][span] == row["score"][scored] and span != scored:
                row["score"][span] = -0.5
        row["score"][scored] = -0.5

    for neighbours, said in ((1, "the one before"), (3, "an earlier one of the sequence")):
        pipeline.run(recipe_for(tmp_path / str(neighbours), *SIZES, f"splice.neighbours={neighbours}"))
        run = Path(shutil.copytree(tmp_path / str(neighbours), tmp_path / f"altered-{neighbours}"))
        change_sequence(run, alter)
        outcome = check_document_scores(Artefacts(run))
        assert outcome.breaches
        assert f"has the score -0.5000, the cosine to {said} is" in outcome.examples[0]


def test_trees_in_another_order_are_not_judged(spliced):
    assert (
        judged(spliced["reverse"], "reverse").skipped
        == "only its drafts say which is the document that they were found for"
    )
