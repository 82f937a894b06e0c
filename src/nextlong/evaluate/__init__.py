"""Evaluate: what a long-context model can do, task by task and length by length.

In:  a model (Hugging Face, or an OpenAI-compatible server), and the user's data files. Out: one JSON a task and length, with every
answer; tables and figures as the paper lays them out (§4 and §5, arXiv 2501.12766).

    task.py        what a task is, and the registry          tasks/    the tasks, a file a family
    scores.py      answer and references → score             models/   who answers
    settings.py    what was asked for                        probes/   what is measured inside a model, not asked of it
    run.py         tasks × lengths → results, resumable      report/   results → tables and figures

torch, transformers, matplotlib and lm-eval come with the extra `nextlong[evaluate]` and are imported where they are used.
"""
