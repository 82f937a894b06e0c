import pyarrow.parquet as pq
import pytest

import nextlong
from nextlong import pipeline
from nextlong.errors import NextlongError
from nextlong.runs import export as runs_export

T = 2048


def export(runs, **asked):
    """Export and return the finished steps."""
    return runs_export.export(runs, **asked).done


def rows_of(folder):
    return [row for path in sorted(folder.glob("*.parquet")) for row in pq.read_table(path).to_pylist()]


def test_torchtitan_gets_the_token_that_its_last_label_is(own_run, recipe_for):
    with pytest.raises(NextlongError, match=r"wants sequences of compose.target_tokens \+ 1 = 2,049 tokens, those of"):
        export([own_run], formats=["torchtitan"])
    embedded = {path.name for path in own_run.glob("*-embed-*")}
    done = pipeline.run(recipe_for(own_run, "export.formats=[torchtitan]", "compose.sequences=3"))
    rows = rows_of(done["torchtitan"].folder)
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
            export([own_run, tmp_path / "titan"], formats=formats)
    with pytest.raises(
        NextlongError, match=r"parquet wants sequences of compose.target_tokens = 2,048 tokens, those of"
    ):
        export([tmp_path / "titan"], formats=["parquet"])
