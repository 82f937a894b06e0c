"""LongBench v2's result files: the numbers of its result.py, recorded."""

import json
from pathlib import Path

import pytest
from tests.evaluate.importing.conftest import read_into

from nextlong.errors import EvaluateError
from nextlong.evaluate import tables

REFERENCE = Path(__file__).parents[1] / "reference/longbench_v2.json"


@pytest.fixture
def recorded():
    return json.loads(REFERENCE.read_text(encoding="utf-8"))


def written(path, rows):
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def test_the_table_has_the_numbers_of_result_py(tmp_path, recorded):
    file = written(tmp_path / "GLM-4-9B-Chat.jsonl", recorded["rows"])
    found = read_into([file], out=tmp_path / "out")
    assert found.name == recorded["printed"]["Model"]
    (table,) = [
        table
        for table in tables.all_tables([found])
        if table.title == "longbench_v2 by difficulty and length"
    ]
    ((_, cells),) = table.rows
    shown = dict(zip(table.columns, cells, strict=True))
    for column in ("Overall", "Easy", "Hard", "Short", "Medium", "Long"):
        assert f"{shown[column].value:.1f}" == recorded["printed"][column]


@pytest.mark.parametrize("variant", ["_cot", "_no_context"])
def test_a_variant_is_a_task_of_its_own(variant, tmp_path, recorded):
    file = written(tmp_path / f"m{variant}.jsonl", recorded["rows"])
    found = read_into([file], out=tmp_path / "out")
    assert (found.name, found.finished[0].task) == ("m", f"longbench_v2{variant}")


def test_retrieval_and_damaged_rows_are_refused(tmp_path, recorded):
    retrieved = written(tmp_path / "m_rag_5.jsonl", recorded["rows"])
    with pytest.raises(EvaluateError, match="--rag"):
        read_into([retrieved], out=tmp_path / "out")
    del recorded["rows"][3]["length"]
    damaged = written(tmp_path / "m.jsonl", recorded["rows"])
    with pytest.raises(EvaluateError, match="'length'") as error:
        read_into([damaged], out=tmp_path / "out")
    assert error.value.where == str(damaged)
