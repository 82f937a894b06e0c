"""Train: long-range dependence modelling, the second half of the method (paper §3.2), with PyTorch and transformers.

In:  a training recipe, a model of transformers, the sequences of finished runs.
Out: checkpoints that `from_pretrained` loads, logs, a figure of the loss.

    recipe.py                     settings, presets (the paper's), and which keys a trainer supports
    rows.py, conversations.py     runs, exports or conversations → rows with the boundaries of their documents
    model.py, exact.py            data checked, model with exact attention and loss per document, without T × T masks; leak check
    loop.py                       steps on one device, their checkpoints; fine-tuning by TRL
    metrics.py                    logs and figures; held-out loss by role and distance
    forecast.py                   memory, operations, hours
    titan/, emit.py               several devices by torchtitan; configs for other trainers

Recipes, presets and emitted configs need no PyTorch; for the rest: pip install 'nextlong[train]'.
"""
