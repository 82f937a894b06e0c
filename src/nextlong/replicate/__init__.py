"""Replicate: the paper in small, from a corpus to its tables and figures.

In:  a recipe, and the user's documents. Out: `OUT/report.html`, `.md`, `.tex`, the figures as SVG and PNG, and everything
that they are drawn from.

    recipe.py     what is asked for          presets.py   sizes, and what each can and cannot show
    corpus.py     documents → training and held-out parts, the haystack
    data.py       documents → the runs: pretraining, one a method or setting, held out
    models.py     runs → models: one pretrained a seed, one extended a run and seed
    measure.py    models → results, by `nextlong.evaluate`
    carry_out.py  all of it in order; what is finished is kept
    collect.py    results → scores with their spread over seeds
    published.py  the paper's own numbers    tables.py, figures.py, report.py   scores → pages
    plan.py       what it will take

The stations, the trainer and the evaluation are the package's own; nothing here measures or trains in another way.
"""
