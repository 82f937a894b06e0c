"""BABILong's result files: scores of its metrics.py, recorded item by item."""

import csv
import json
from itertools import groupby
from pathlib import Path

import pytest
from tests.evaluate.importing.conftest import read_into

from nextlong.errors import EvaluateError

REFERENCE = Path(__file__).parents[1] / "reference/babilong.json"
SETTINGS = "instruction_yes_examples_yes_post_prompt_yes_chat_template_no"


def written(path, items):
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, ["", "target", "output", "question"])
        writer.writeheader()
        for number, item in enumerate(items):
            writer.writerow(
                {
                    "": number,
                    "target": item["target"],
                    "output": item["answer"],
                    "question": item["question"],
                }
            )
    return path


def test_the_scores_are_the_references(tmp_path):
    items = json.loads(REFERENCE.read_text(encoding="utf-8"))["scores"]
    expected = {}
    files = []
    for task, group in groupby(items, key=lambda item: item["task"]):
        of_task = list(group)
        expected[f"babilong_{task}"] = [100 * item["score"] for item in of_task]
        path = tmp_path / f"org/model/{task}_4k_{SETTINGS}.csv"
        files.append(written(path, of_task))
    found = read_into(files, out=tmp_path / "out")
    assert found.name == "model"
    outcomes = {result.task: list(result.outcomes[0]) for result in found.finished}
    assert outcomes == expected
    assert {result.length for result in found.finished} == {4096}


def test_lm_evals_grader_gives_other_scores():
    """Why lm-eval's BABILong is not imported; docs/evaluate/import.md has the count."""
    items = json.loads(REFERENCE.read_text(encoding="utf-8"))["scores"]
    different = [item for item in items if item["lm_eval"] != item["score"]]
    assert (len(different), len(items)) == (16, 80)


@pytest.mark.parametrize("name", [f"qa7_4k_{SETTINGS}", f"qa1_long_{SETTINGS}"])
def test_a_file_of_another_task_or_length_is_refused(name, tmp_path):
    item = {"target": "garden", "answer": "garden", "question": "Where is Mary?"}
    file = written(tmp_path / f"org/model/{name}.csv", [item])
    with pytest.raises(EvaluateError) as error:
        read_into([file], out=tmp_path / "out")
    assert error.value.where == str(file)
