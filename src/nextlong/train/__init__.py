"""Train: long-range dependence modelling, the second half of the method (paper §3.2).

In:  a training recipe, a model of transformers, the sequences of finished runs.
Out: checkpoints that `from_pretrained` loads, logs, a figure of the loss.

    recipe.py                  settings, presets (the paper's), the keys of a trainer
    sources.py, rows.py        runs, exports or chats → rows with document boundaries
    conversations.py           chats → ids, and which of them are answers
    prepare.py, rope.py        data checked against the model, its RoPE base
    model.py, check.py         model and optimizer; compared with its own forward pass
    attention.py, loss.py      exact, per document, without T × T masks or whole logits
    loop.py, checkpoints.py    steps on one device, and what they write
    sft.py                     fine-tuning by TRL
    metrics.py                 logs and figures; held-out loss by role and distance
    forecast.py, memory.py     memory, operations, hours
    titan/, emit.py            several devices by torchtitan; other trainers' configs

Recipes, presets and emitted configs need no PyTorch; for the rest:
pip install 'nextlong[train]'.
"""
