"""torchtitan: a Python module with its config and its data loader, to be imported by torchtitan as it is."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from nextlong.errors import RecipeError
from nextlong.plain_data import Json
from nextlong.train.emit.facts import Facts, shell, torchrun

# torchtitan's Llama 3 flavours by (layers, width); sizes of others would have to be written out.
_FLAVOURS: Final = {(16, 2048): "1B", (28, 3072): "3B", (32, 4096): "8B", (80, 8192): "70B", (126, 16_384): "405B"}


def files(facts: Facts) -> Mapping[str, str]:
    """Return `nextlong_titan.py` and `launch.sh`."""
    launch = ['export PYTHONPATH="$PWD${PYTHONPATH:+:$PYTHONPATH}"']
    launch += torchrun(facts, "-m torchtitan.train", "--module nextlong_titan --config nextlong")
    return {"nextlong_titan.py": _MODULE.format(**_values(facts)), "launch.sh": shell(launch)}


def _values(facts: Facts) -> Json:
    recipe, training, sizes = facts.recipe, facts.recipe.training, facts.architecture()
    flavour = _FLAVOURS.get((sizes["num_hidden_layers"], sizes["hidden_size"]))
    if sizes.get("model_type") != "llama" or flavour is None:
        raise RecipeError(
            f"model.path={recipe.model.path!r} is not a Llama 3 of {', '.join(_FLAVOURS.values())}, which "
            f"torchtitan is told by name; "
            "use axolotl, prolong or megatron"
        )
    decay = {"cosine": "cosine", "linear": "linear", "constant": "linear"}[training.schedule]
    return {
        "flavour": flavour,
        "data": str(facts.train_data),
        "model": recipe.model.path,
        "base": facts.rope_base(),
        "scaling": "llama" if facts.llama3_scaling() else "none",
        "row_tokens": facts.row_tokens,
        "sequence_tokens": facts.sequence_tokens,
        "rows": facts.rows_per_step,
        "steps": training.steps,
        "warmup": training.warmup_steps,
        "lr": training.lr,
        "min_lr": 1.0 if training.schedule == "constant" else training.min_lr_ratio,
        "decay": decay,
        "betas": (training.beta1, training.beta2),
        "eps": training.eps,
        "weight_decay": training.weight_decay,
        "clip": repr(training.clip) if training.clip else 'float("inf")',
        "context": facts.shared_by,
        "interval": recipe.checkpoints.every_steps,
        "keep": recipe.checkpoints.keep_last,
        "out": str(facts.folder / "out"),
        "seed": recipe.seed,
    }


_MODULE: Final = '''"""A training of nextlong for torchtitan 0.3: config and data loader.

    torchrun … -m torchtitan.train --module nextlong_titan --config nextlong

Samples hold one token more than torchtitan's inputs where the export has it; otherwise the label of a row's last token is ignored.
Positions start again at each sequence, and flex attention keeps sequences apart by them.
"""

from dataclasses import dataclass, replace

import torch
from datasets import load_dataset
from datasets.distributed import split_dataset_by_node
from torch.utils.data import IterableDataset
from torchtitan.components.dataloader import ParallelAwareDataloader
from torchtitan.components.loss import IGNORE_INDEX


def sample_of(row, seq_len):
    """Return inputs, positions and labels of a row; a sequence starts at position 0 and its last token predicts nothing."""
    ids = torch.tensor(row["input_ids"], dtype=torch.long)
    lengths = torch.tensor(row["seq_lengths"], dtype=torch.long)
    positions = torch.cat([torch.arange(length) for length in lengths.tolist()])
    labels = torch.cat([ids[1:], ids[:1]])
    labels[lengths.cumsum(0) - 1] = IGNORE_INDEX
    return {{"input": ids[:seq_len], "positions": positions[:seq_len]}}, labels[:seq_len]


class Rows(IterableDataset):
    def __init__(self, rows, seq_len):
        self.rows, self.seq_len, self.epoch = rows, seq_len, 0

    def __iter__(self):
        while True:
            self.rows.set_epoch(self.epoch)
            yield from (sample_of(row, self.seq_len) for row in self.rows)
            self.epoch += 1

    def state_dict(self):
        return {{"epoch": self.epoch, "rows": self.rows.state_dict()}}

    def load_state_dict(self, state):
        self.epoch = state["epoch"]
        self.rows.set_epoch(self.epoch)
        self.rows.load_state_dict(state["rows"])


class RowsLoader(ParallelAwareDataloader):
    @dataclass(kw_only=True, slots=True)
    class Config(ParallelAwareDataloader.Config):
        pass

    def __init__(self, config, *, dp_world_size, dp_rank, seq_len, local_batch_size, tokenizer=None, **rest):
        rows = load_dataset("parquet", data_files=f"{{config.dataset_path}}/*.parquet", split="train", streaming=True)
        rows = rows.select_columns(["input_ids", "seq_lengths"]).with_format("numpy")
        rows = Rows(split_dataset_by_node(rows, dp_rank, dp_world_size), seq_len)
        loading = {{name: getattr(config, name) for name in ("num_workers", "pin_memory", "prefetch_factor")}}
        super().__init__(rows, dp_rank, dp_world_size, batch_size=local_batch_size, **loading, **rest)


def nextlong():
    from torchtitan.components.optimizer import default_adamw
    from torchtitan.distributed.activation_checkpoint import FullAC
    from torchtitan.models.llama3 import model_registry
    from torchtitan.models.llama3.config_registry import llama3_8b

    config = llama3_8b()
    spec = model_registry({flavour!r}, attn_backend="flex")
    for layer in spec.model.layers:
        layer.attention.rope = replace(layer.attention.rope, theta={base!r}, max_seq_len={sequence_tokens}, scaling={scaling!r})
    config.model_spec = spec
    config.hf_assets_path = {model!r}
    config.dump_folder = {out!r}
    config.dataloader = RowsLoader.Config(dataset_path={data!r})
    config.optimizer = default_adamw(
        lr={lr!r}, betas={betas!r}, eps={eps!r}, weight_decay={weight_decay!r}
    )
    config.lr_scheduler.warmup_steps = {warmup}
    config.lr_scheduler.decay_type = {decay!r}
    config.lr_scheduler.min_lr_factor = {min_lr!r}
    config.training.seq_len = {row_tokens}
    config.training.local_batch_size = 1
    config.training.global_batch_size = {rows}
    config.training.steps = {steps}
    config.training.max_norm = {clip}
    config.parallelism.context_parallel_degree = {context}
    config.activation_checkpoint = FullAC.Config()
    config.checkpoint.enable = True
    config.checkpoint.interval = {interval}
    config.checkpoint.keep_latest_k = max(2, {keep})
    config.checkpoint.initial_load_in_hf = True
    config.checkpoint.initial_load_path = {model!r}
    config.debug.seed = {seed}
    config.validator.enable = False
    return config
'''
