"""Train: long-range dependence modelling, the second half of the method (paper §3.2), by PyTorch and transformers.

In:  a training recipe, a model of transformers, the sequences of finished runs.
Out: checkpoints that `from_pretrained` loads, metrics, a picture of the loss.

The engine is theirs. Ours is what packed rows of 128K tokens need and they lack:

    1. attention.py    attention within each document, without a mask of T × T
    2. loss.py         next-token loss in blocks: logits of T × vocabulary never stand whole
    3. rope.py         the RoPE base that was asked for is the one that is trained, saved and loaded again
    4. rows.py         rows straight from the runs, with their boundaries and roles
    5. loop.py         steps on one device, exact under accumulation and after a kill
    6. held_out.py     loss by position, by role, and by distance to the meta-chunk before

Recipes, presets and configs for other trainers need no PyTorch; what trains says where it's missing: pip install 'nextlong[train]'.
"""
