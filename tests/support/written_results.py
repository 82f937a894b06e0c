"""Results as an evaluation writes them, of scores that are asked for."""

import json

from nextlong.evaluate import results, tables
from nextlong.evaluate.registry import scored_tasks

QUESTIONS = 100
LENGTHS = (8192, 16_384, 32_768, 65_536, 131_072)


def write_results(folder, scores, *, label, cosine=None):
    """Write results in which a category's tasks all have its score less the number of the length."""
    folder.mkdir(parents=True)
    index = {
        "format": 2,
        "nextlong": "0",
        "model": {"name": "m", "label": label, "negatives_cosine": cosine},
    }
    (folder / "evaluation.json").write_text(json.dumps(index))
    for task in scored_tasks().values():
        for number, length in enumerate(LENGTHS):
            if task.category in scores:
                score = scores[task.category] - number
                values = {
                    "task": task.name,
                    "length": length,
                    "metric": "m",
                    "score": score,
                    "n": QUESTIONS,
                    "refused": 0,
                    "samples": [
                        {
                            "details": {"shots": 100 * (number + 1)},
                            "scores": {"m": float(n < score)},
                        }
                        for n in range(QUESTIONS)
                    ],
                }
                path = results.path_of(folder, task.name, length)
                path.parent.mkdir(exist_ok=True)
                path.write_text(json.dumps({"format": 2, **values}))
    return folder


def write_result(folder, task, length, **values):
    """Write one task's result at a length."""
    path = results.path_of(folder, task, length)
    path.parent.mkdir(exist_ok=True)
    path.write_text(
        json.dumps(
            {"format": 2, "task": task, "length": length, "samples": [], **values}
        )
    )


SCORES = dict(zip(tables.CATEGORIES, (82.0, 60.0, 81.0, 31.0, 37.0, 81.0), strict=True))
