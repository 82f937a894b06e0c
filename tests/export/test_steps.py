import pytest

import nextlong
from exported_runs import change_json, record_of
from nextlong import pipeline
from nextlong.errors import NextlongError
from nextlong.runs import export as runs_export


def test_keys_of_the_recipe_for_formats_that_are_not_written_now_are_no_mistake(own_run):
    changed = {"compression": "lz4", "row_group_mb": 1.0}
    change_json(record_of(own_run), lambda record: record["recipe"]["export"].update(changed))
    written = runs_export.export([own_run], formats=["mds"])
    assert (written.recipe.export.compression, written.recipe.export.row_group_mb) == ("auto", 64.0)
    kept = runs_export.export([own_run], formats=["mds", "parquet"]).recipe.export
    assert (kept.compression, kept.row_group_mb) == ("lz4", 1.0)


def test_a_token_that_should_end_documents_is_looked_for_before_anything_runs(shared_run, recipe_for, tmp_path):
    tokenizer = nextlong.open(shared_run).steps["tokenizer"].file(".tokenizer.json")
    asked = [f"tokenizer={{source: {tokenizer}}}", "export.formats=[megatron]", "export.megatron_eod=nope"]
    with pytest.raises(NextlongError, match=r"export\.megatron_eod='nope' is not a token of the tokenizer"):
        pipeline.run(recipe_for(tmp_path / "run", *asked))
    assert list((tmp_path / "run").glob("[0-9]*")) == []
    with pytest.raises(NextlongError, match=r"export\.megatron_eod='nope' is not a token of the tokenizer"):
        pipeline.run(recipe_for(tmp_path / "trained", *asked[1:]))
    made = {path.name.split("-")[1] for path in (tmp_path / "trained").glob("[0-9]*")}
    assert made >= {"ingest", "chunk", "tokenizer"}
    assert made.isdisjoint({"draft", "rows"})  # what waits for the tokenizer; others may have begun beside it
