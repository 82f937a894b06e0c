"""HELMET's tasks (Yen et al. 2024, arXiv 2410.02694), the five categories that the paper measures.

Prompts, shots, output budgets and scores are those of its `data.py` and configs; its data files are the user's. Where we differ:
docs/evaluate/helmet.md.
"""

from nextlong.evaluate.tasks.helmet import cite, icl, longqa, rag, recall, rerank, ruler, summ

_TASKS = (*recall.TASKS, *rag.TASKS, *icl.TASKS, *rerank.TASKS, *longqa.TASKS, *cite.TASKS, *summ.TASKS)
TASKS = (*_TASKS, *ruler.TASKS, *icl.TASKS_2024)
