"""The wording of what a plan says: its warnings, and the errors of a sample."""

from types import SimpleNamespace

import pytest
from tests.support.planned import recipe_in, written

from nextlong.errors import CorpusError
from nextlong.report.plan import warnings
from nextlong.report.plan.scenario import Scenario


def test_what_a_plan_warns_of(recipe, tmp_path, monkeypatch):
    monkeypatch.setattr(
        warnings.shutil, "disk_usage", lambda _: SimpleNamespace(free=1000)
    )
    monkeypatch.setattr(warnings, "memory_bytes", lambda: 1_000_000)
    asked = recipe_in(tmp_path, "compose.target_tokens=64", "compose.min_meta_chunks=4")
    told = written(asked)
    assert "not enough disk space: the run writes about " in told
    assert "not enough memory: the run needs about " in told
    assert (
        "are too long for compose.target_tokens=64 with negatives between their chunks; "
        "they will be dropped, and the rest is a biased sample; raise" in told
    )
    exact = recipe_in(tmp_path, "search.index=exact", "compose.sequences=all")
    assert (
        "an approximate index would be faster: search.index=exact takes about"
        in written(exact, Scenario(workers=2, chunks=1e7))
    )


def test_what_is_said_of_files_without_a_document(recipe, tmp_path):
    (tmp_path / "c.jsonl").write_text('{"text": ""}\n')
    with pytest.raises(CorpusError) as error:
        written(recipe)
    assert str(error.value) == (
        f"ingest.sources: no document was found in a sample of {tmp_path}/c.jsonl or "
        "other files (1 record: empty); correct ingest.sources; `nextlong run` names "
        "every reject"
    )
