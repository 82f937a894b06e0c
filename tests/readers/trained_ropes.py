"""Make what test_transformers_4_reads.py reads: models of each RoPE type, trained at a rate of almost 0, with their logits.

PYTHONPATH=src:. python tests/readers/trained_ropes.py INTO
"""

import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch
from rich.console import Console
from tests.support.rope_models import SCALED, logits, scaled_model

from nextlong.train.loop import train
from nextlong.train.recipe import TrainRecipe

into = Path(sys.argv[1])
into.mkdir(parents=True)
ids = torch.randint(3, 97, (2, 256), generator=torch.Generator().manual_seed(0))
rows = pa.array(ids.tolist(), pa.list_(pa.int32()))
pq.write_table(pa.table({"input_ids": rows}), into / "rows.parquet")
for name in SCALED:
    folder = into / name.replace(" ", "-")
    model = {"path": str(scaled_model(name, folder / "source"))}
    if name == "default":
        model["rope_base"] = 5e5
    recipe = TrainRecipe.from_dict(
        {
            "out": str(folder),
            "data": {"parquet": [str(into / "rows.parquet")], "validation": 0.0},
            "model": model,
            "training": {
                "steps": 1,
                "tokens_per_step": 512,
                "precision": "fp32",
                "lr": 1e-12,
            },
        }
    )
    final = train(recipe, Console())
    for tokens in (24, 256):
        expected = logits(final, ids[:1, :tokens]).numpy()
        np.save(folder / f"logits-{tokens}.npy", expected)
