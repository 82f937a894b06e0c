"""Replicate: the paper on a small scale: is it worth it that negatives are hard?

In:  a recipe.
Out: `OUT/PRESET.json`, `OUT/results.md`, and everything that they are made from.

    recipe.py       settings, arms and presets (presets.yaml)
    run.py          corpus → runs → models → measurements, resumable
    corpus.py       invented documents and probes
    results.py      the section of the page (page.md), the planned tests (planned.yaml)
    small_llama.py  models before any training, and what is measured of them
"""
