"""Replicate: the paper on a small scale: which sequences teach models to look back.

In:  a recipe, and the user's documents or an invented corpus.
Out: `OUT/results.md` and its figures, and everything that they are made from.

    recipe.py       settings, arms and presets
    run.py          corpus → runs → models → measurements, resumable
    corpora.py      the two corpora
    results.py      the page (page.md, hypotheses.yaml)
    small_llama.py  models before any training, and what is measured of them
"""
