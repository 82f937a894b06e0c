"""Replicate: the paper on a small scale, from a corpus to its tables and figures.

In:  a recipe, and the user's documents.
Out: `OUT/report.html`, `.md`, `.tex`, the figures as SVG and PNG, and everything that they are made from.

    recipe.py   settings and presets                       data.py      documents → training and held-out runs
    run.py      runs → models → results, resumable         scores.py    results → scores with their spread, and the paper's
    report.py, figures.py   scores → page and figures      plan.py      models, hours and disk before anything runs
    mechanism.py   the controlled experiment on an invented corpus (with mechanism_recipe, invented, initial, recall)
    results.py     its page
"""
