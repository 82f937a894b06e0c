"""The summary tells what was left out as nearly equal, and the run is sound."""

import pytest
from tests.support.altered_corpora import breaches, rows_of, write_source
from tests.support.counted import total

from nextlong import pipeline
from nextlong.report import summary
from nextlong.runs.exported import Exported
from nextlong.runs.run import Run


def test_of_nearly_equal_documents_one_stays(recipe_for, small_corpus, tmp_path):
    pytest.importorskip("rensa")
    rows = [row for row in rows_of(small_corpus) if len(row["text"]) > 500][:60]
    # With one word in a hundred changed, a document keeps about 95 % of its five-word
    # runs.
    near = [
        row | {"id": f"{row['id']}-copy", "text": row["text"] + " other"}
        for row in rows
    ]
    recipe = recipe_for(
        tmp_path / "run",
        write_source(tmp_path / "corpus", [*rows, *near]),
        "ingest.dedup=minhash",
    )
    done = pipeline.run(recipe)
    told = dict(summary.lines(Exported(recipe, [Run(recipe.run_path)], done)))[
        "documents"
    ]
    assert total(done["near_duplicates"], "near_duplicates") >= len(rows)
    assert "near-duplicates" in told
    kept = total(done["chunk"], "documents")
    assert told.startswith(f"{kept:,} kept of {2 * len(rows):,}")
    assert kept <= len(rows)
    assert breaches(tmp_path / "run") == {}
