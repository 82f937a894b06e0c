"""Results as an evaluation writes them, of scores that are asked for."""

import json

from nextlong.evaluate import results
from nextlong.evaluate.report import paper
from nextlong.evaluate.task import all_tasks

LENGTHS = (8192, 16_384, 32_768, 65_536, 131_072)


def write_results(folder, scores, *, label, cosine=None):
    """Write results in which a category's tasks all have its score less the number of the length."""
    folder.mkdir(parents=True)
    index = {"format": 1, "nextlong": "0", "model": {"name": "m", "label": label, "negatives_cosine": cosine}}
    (folder / "evaluation.json").write_text(json.dumps(index))
    for task in all_tasks().values():
        for number, length in enumerate(LENGTHS):
            if task.category in scores:
                samples = [{"details": {"shots": 100 * (number + 1)}, "scores": {}}]
                values = {
                    "task": task.name,
                    "length": length,
                    "score": scores[task.category] - number,
                    "samples": samples,
                }
                path = results.place_of(folder, task.name, length)
                path.parent.mkdir(exist_ok=True)
                path.write_text(json.dumps({"format": 1, **values}))
    return folder


def write_result(folder, task, length, **values):
    """Write one task's result at a length."""
    path = results.place_of(folder, task, length)
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps({"format": 1, "task": task, "length": length, "samples": [], **values}))


SCORES = dict(zip(paper.CATEGORIES, (82.0, 60.0, 81.0, 31.0, 37.0, 81.0), strict=True))
