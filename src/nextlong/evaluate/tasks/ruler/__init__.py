"""RULER's 13 tasks (Hsieh et al. 2024, arXiv 2404.06654), prompt for prompt as NVIDIA's generator makes them.

Draws come from one stream a task, in the order of NVIDIA's scripts (scripts/data/synthetic/*.py), so that the same seed, words,
essays and tokenizer give the same prompts. Where we differ, on purpose: docs/evaluate/ruler.md.
"""

from nextlong.evaluate.tasks.ruler import common_words, frequent_words, niah, qa, variables

TASKS = (*niah.TASKS, *variables.TASKS, *common_words.TASKS, *frequent_words.TASKS, *qa.TASKS)
