import pytest

import nextlong
from exported_runs import exported, parquet_rows
from nextlong import pipeline
from nextlong.errors import NextlongError

T = 2048


def test_torchtitan_gets_the_token_that_its_last_label_is(own_run, recipe_for):
    with pytest.raises(NextlongError, match=r"wants sequences of compose.target_tokens \+ 1 = 2,049 tokens, those of"):
        exported([own_run], formats=["torchtitan"])
    embedded = {path.name for path in own_run.glob("*-embed-*")}
    done = pipeline.run(recipe_for(own_run, "export.formats=[torchtitan]", "compose.sequences=3"))
    rows = parquet_rows(done["torchtitan"].folder)
    assert [row["seq_lengths"] for row in rows] == [[T + 1]] * 3
    assert [len(row["input_ids"]) for row in rows] == [T + 1] * 3
    assert {path.name for path in own_run.glob("*-embed-*")} == embedded
    assert [len(sequence.input_ids) for sequence in nextlong.open(own_run).sequences()] == [T + 1] * 3


def test_a_mix_of_sequences_with_and_without_the_last_label_is_refused(own_run, recipe_for, tmp_path):
    pipeline.run(recipe_for(tmp_path / "titan", "export.formats=[torchtitan]", "compose.sequences=2", "workers=1"))
    for formats in (["torchtitan"], ["parquet"]):
        with pytest.raises(
            NextlongError, match=r"sequences of 2,048 tokens of .*run \(for parquet, jsonl\) and 2,049 tokens"
        ):
            exported([own_run, tmp_path / "titan"], formats=formats)
    with pytest.raises(
        NextlongError, match=r"parquet wants sequences of compose.target_tokens = 2,048 tokens, those of"
    ):
        exported([tmp_path / "titan"], formats=["parquet"])
