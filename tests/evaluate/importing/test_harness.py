"""lm-eval's result files, as its newest release wrote them for recorded answers."""

import json
from pathlib import Path

import pytest
from tests.evaluate.importing.conftest import read_into

from nextlong.errors import EvaluateError
from nextlong.evaluate import tables

REFERENCE = Path(__file__).parents[1] / "reference/lm_eval_graphwalks.json"
TIME = "2026-11-28T13-31-32.311365"


@pytest.fixture
def recorded():
    return json.loads(REFERENCE.read_text(encoding="utf-8"))


def written(folder, recorded, *, tasks=("graphwalks_128k", "graphwalks_1M")):
    files = [folder / f"results_{TIME}.json"]
    files[0].write_text(json.dumps(recorded["results"]), encoding="utf-8")
    for task in tasks:
        files.append(folder / f"samples_{task}_{TIME}.jsonl")
        lines = [json.dumps(row, ensure_ascii=False) for row in recorded["samples"]]
        files[-1].write_text("\n".join(lines) + "\n", encoding="utf-8")
    return files


def test_the_scores_are_those_that_lm_eval_stated(tmp_path, recorded):
    found = read_into(written(tmp_path, recorded), out=tmp_path / "out")
    assert found.name == "recorded"
    stated = recorded["results"]["results"]
    scores = {result.length: result.values["scores"] for result in found.finished}
    assert set(scores) == {131_072, 1_048_576}
    for length, task in ((131_072, "graphwalks_128k"), (1_048_576, "graphwalks_1M")):
        for metric in ("f1", "flexible_f1"):
            expected = 100 * stated[task][f"{metric},none"]
            assert scores[length][metric] == pytest.approx(expected)


def test_a_table_has_the_scores_of_both_kinds_of_question(tmp_path, recorded):
    found = read_into(written(tmp_path, recorded), out=tmp_path / "out")
    (table,) = [
        table
        for table in tables.all_tables([found])
        if table.title == "graphwalks by kind"
    ]
    kinds = [row["doc"]["problem_type"] for row in recorded["samples"]]
    for _, (_, bfs, parents, _) in table.rows:
        for cell, kind in ((bfs, "bfs"), (parents, "parents")):
            assert cell.n == kinds.count(kind)


def test_results_without_samples_are_refused(tmp_path, recorded):
    files = written(tmp_path, recorded, tasks=("graphwalks_128k",))
    with pytest.raises(EvaluateError, match="--log_samples") as error:
        read_into(files, out=tmp_path / "out")
    assert error.value.where == str(tmp_path / f"samples_graphwalks_1M_{TIME}.jsonl")


def test_samples_of_another_evaluation_are_refused(tmp_path, recorded):
    files = written(tmp_path, recorded)
    recorded["samples"][0]["f1"] = 0.5
    written(tmp_path, recorded)
    with pytest.raises(EvaluateError, match="in its samples"):
        read_into(files, out=tmp_path / "out")


def test_results_of_other_tasks_are_refused(tmp_path):
    file = tmp_path / f"results_{TIME}.json"
    file.write_text('{"results": {"piqa": {}}, "n-samples": {}}')
    with pytest.raises(EvaluateError, match="no task of nextlong's tables"):
        read_into([file], out=tmp_path / "out")
