"""HELMET's tasks (Yen et al. 2024, arXiv 2410.02694), and RULER as HELMET runs it.

Prompts, shots, output budgets and scores of all seven categories are those of its
`data.py` and configs; its data files are the user's. Differences:
docs/evaluate/helmet.md.
"""

from nextlong.evaluate.tasks.helmet import longqa, passages, recall

TASKS = (
    *recall.TASKS,
    *passages.TASKS,
    *recall.ICL_2025,
    *longqa.TASKS,
    *recall.RULER.values(),
    *recall.ICL_2024,
)
