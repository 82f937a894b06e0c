"""Replicate: the paper on a small scale: which sequences teach small models to look back.

In:  a recipe, and the user's documents or an invented corpus.
Out: `OUT/results.md` and its figures, and everything that they are made from.

    recipe.py   settings, arms and presets         run.py      corpus → runs → models → measurements, resumable
    invented.py, documents.py   the two corpora    recall.py   what is measured of a model
    initial.py  models before any training         results.py  the page
"""
