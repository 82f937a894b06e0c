"""axolotl: a config in YAML. Sequences stay unpacked in the export; axolotl packs them itself and keeps them apart."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import yaml

from nextlong.errors import RecipeError
from nextlong.plain_data import Json
from nextlong.train.emit.expressed import Keys
from nextlong.train.emit.facts import Facts, machines, shell

KEYS: Final[Keys] = {
    **dict.fromkeys(("seed", "training", "model.rope_base", "model.rope_scaling", "checkpoints")),
    "attention": ("sequence", "row"),
    "training.micro_batch_rows": (1,),
    "memory.checkpointing": ("layers", "none"),
}


def files(facts: Facts) -> Mapping[str, str]:
    """Return `axolotl.yaml` and `launch.sh`."""
    launch = ["axolotl train axolotl.yaml --launcher torchrun -- " + machines(facts)]
    return {"axolotl.yaml": yaml.safe_dump(config(facts), sort_keys=False, width=120), "launch.sh": shell(launch)}


def config(facts: Facts) -> Json:
    """Return the settings; names as in axolotl 0.21."""
    recipe, training = facts.recipe, facts.recipe.training
    if training.schedule != "cosine" and training.min_lr_ratio:
        raise RecipeError(
            f"--emit axolotl cannot express training.min_lr_ratio={training.min_lr_ratio} with training.schedule="
            f"{training.schedule}; set it to 0, or use the schedule cosine"
        )
    packed = facts.row_tokens > facts.sequence_tokens or recipe.data.pack is not None
    settings: Json = {
        "base_model": recipe.model.path,
        "model_config": {
            "rope_parameters": (facts.llama3_scaling() or {"rope_type": "default"}) | {"rope_theta": facts.rope_base()},
            "max_position_embeddings": facts.sequence_tokens,
        },
        "datasets": [{"path": str(facts.data), "split": "train", "type": None}],  # no type: already tokenized
        "sequence_len": facts.row_tokens,
        "excess_length_strategy": "raise",
        "sample_packing": packed,
        "pad_to_sequence_len": packed,
        "attn_implementation": "flash_attention_2",
        "fsdp_version": 2,
        "fsdp_config": {
            "auto_wrap_policy": "TRANSFORMER_BASED_WRAP",
            "reshard_after_forward": True,
            "state_dict_type": "FULL_STATE_DICT",
            "activation_checkpointing": recipe.memory.checkpointing != "none",
        },
        "dp_shard_size": facts.gpus // facts.shared_by,
        "context_parallel_size": facts.shared_by,
        "ring_attn_func": "varlen_llama3",  # batch_ring gave loss × 1.83; 0.21 warns that it chooses by itself now
        "micro_batch_size": 1,
        "gradient_accumulation_steps": facts.accumulation,
        "max_steps": training.steps,
        "learning_rate": training.lr,
        "lr_scheduler": "constant_with_warmup" if training.schedule == "constant" else training.schedule,
        "warmup_steps": training.warmup_steps,
        "optimizer": "adamw_torch_fused",
        "adam_beta1": training.beta1,
        "adam_beta2": training.beta2,
        "adam_epsilon": training.eps,
        "weight_decay": training.weight_decay,
        "max_grad_norm": training.clip or 0.0,  # 0: as it is
        "bf16": training.precision == "bf16",
        "save_steps": recipe.checkpoints.every_steps,
        "save_total_limit": recipe.checkpoints.keep_last,
        "seed": recipe.seed,
        "output_dir": str(facts.folder / "out"),
    }
    if training.schedule == "cosine" and training.min_lr_ratio:
        settings["cosine_min_lr_ratio"] = training.min_lr_ratio
    if recipe.data.validation:
        settings["test_datasets"] = [{"path": str(facts.data), "split": "validation", "type": None}]
    return settings
