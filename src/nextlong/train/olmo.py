"""OLMo: a training for OLMo-core, its configs in JSON.

In:  a training recipe over finished runs whose sequences have one length; a Llama in a local folder.
Out: `olmo.json`, `train.py`, which reads it, and `launch.sh`, which on one machine first converts the weights.

OLMo-core cuts the exported ids every `sequence_length` tokens, so an instance is one sequence. It attends within an instance.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from nextlong.errors import RecipeError
from nextlong.text import Json
from nextlong.train.emit import COMMON_KEYS, GPUS_PER_NODE, Settings, Trainer, check_llama, launch_script
from nextlong.train.recipe import SupportedKeys

_SCHEDULES: Final = {"cosine": "CosWithWarmup", "linear": "LinearWithWarmup", "constant": "ConstantWithWarmup"}
_KEYS: Final[SupportedKeys] = {**COMMON_KEYS, "data.pack": (None,), "checkpoints.keep_last": None}


def _of(name: str, **values: object) -> Json:
    """Return the values of a class of OLMo-core, named for `Config.from_dict`."""
    return {"_CLASS_": f"olmo_core.{name}", **values}


def _olmo(settings: Settings) -> Mapping[str, str]:
    """Return OLMo-core's config, with names as in ai2-olmo-core 3.0, the script that trains on it, and its launch script."""
    recipe, training, ranks = settings.recipe, settings.recipe.training, settings.recipe.hardware.ranks_per_row
    sizes, tokens, (base, scaling) = settings.model_config, settings.row_tokens, settings.rope()
    check_llama(sizes, path=str(recipe.model.path), trainer="--emit olmo")
    if sizes["num_key_value_heads"] % ranks:
        raise RecipeError(
            f"hardware.ranks_per_row={ranks}: OLMo-core divides the {sizes['num_key_value_heads']} key-value heads of the model "
            "by the ranks that share a row; change it to a divisor of that"
        )
    if scaling is not None:  # shares of the spectrum instead of the factors of config.json
        shares = {"low_freq_proportion": 1 - 1 / scaling["low_freq_factor"]}
        shares |= {"high_freq_proportion": 1 / scaling["high_freq_factor"]}
        lengths = {"factor": scaling["factor"], "old_context_len": scaling["original_max_position_embeddings"]}
        scaling = _of("nn.rope.StepwiseRoPEScalingConfig", **lengths, **shares)
    norm = {"name": "rms", "eps": sizes["rms_norm_eps"], "bias": False}
    attention = {"n_heads": sizes["num_attention_heads"], "n_kv_heads": sizes["num_key_value_heads"], "bias": False}
    rope = {"theta": round(base), "scaling": scaling}
    block = {
        "sequence_mixer": _of("nn.attention.AttentionConfig", **attention, rope=rope),
        "feed_forward": {"hidden_size": sizes["intermediate_size"], "bias": False},
        "layer_norm": norm,
    }
    folder, vocabulary = settings.data("train"), sizes["vocab_size"]
    width = sum(path.stat().st_size for path in folder.glob("*.npy")) // settings.tokens
    adamw = {"lr": training.lr, "betas": [training.beta1, training.beta2], "eps": training.eps}
    norms = {"params": ["*norm.weight"], "opts": {"weight_decay": 0.0}}
    least_lr = {} if training.schedule == "constant" else {"alpha_f": training.min_lr_ratio}
    kept: Json = {"save_interval": recipe.checkpoints.every_steps, "max_checkpoints": recipe.checkpoints.keep_last}
    kept["pre_train_checkpoint"] = False
    config = {
        "seed": recipe.seed,
        "model_path": recipe.model.path,
        "model": {
            "d_model": sizes["hidden_size"],
            "vocab_size": vocabulary,
            "n_layers": sizes["num_hidden_layers"],
            "block": _of("nn.transformer.TransformerBlockConfig", **block),
            "lm_head": {"layer_norm": norm, "bias": False},
            "tie_word_embeddings": sizes.get("tie_word_embeddings", False),
        },
        "dataset": {
            "paths": [str(folder / "*.npy")],
            "expand_glob": True,
            "sequence_length": tokens,
            "tokenizer": {"vocab_size": vocabulary, "eos_token_id": settings.eos_id, "pad_token_id": settings.eos_id},
            "dtype": f"uint{8 * width}",
            "work_dir": str(settings.folder / "work"),
        },
        "data_loader": {"global_batch_size": settings.rows_per_step * tokens, "seed": recipe.seed, "num_workers": 2},
        "train_module": {
            "rank_microbatch_size": tokens,
            "max_sequence_length": tokens,
            "optim": _of("optim.AdamWConfig", **adamw, weight_decay=training.weight_decay, group_overrides=[norms]),
            "scheduler": _of(f"optim.{_SCHEDULES[training.schedule]}", warmup=training.warmup_steps, **least_lr),
            "max_grad_norm": training.clip,
            "dp_config": {"name": "fsdp", "param_dtype": "bfloat16", "reduce_dtype": "float32"},
            "cp_config": {"degree": ranks, "uly": {}} if ranks > 1 else None,
            "ac_config": {"mode": "full"} if recipe.memory.checkpointing != "none" else None,
        },
        "trainer": {
            "save_folder": str(settings.folder / "out"),
            "load_path": str(settings.folder / "converted"),
            "load_strategy": "always",  # an error where the converted weights are missing, instead of random ones
            "max_duration": {"value": training.steps, "unit": "steps"},
            "callbacks": {"checkpointer": _of("train.callbacks.CheckpointerCallback", **kept)},
        },
    }
    convert = "python train.py convert"
    if recipe.hardware.count > GPUS_PER_NODE:  # each machine would clear what another one is writing to a shared folder
        convert = "{ echo 'on one machine first: python train.py convert' >&2; exit 1; }"
    once = f"[[ -e converted/.metadata ]] || {convert}"  # written last
    launch = launch_script(settings, f"{once}\ntorchrun {{{{ machines }}}} train.py")
    script = Path(__file__).with_name("olmo_train.txt").read_text(encoding="utf-8")
    return {"olmo.json": json.dumps(config, indent=1), "train.py": script, "launch.sh": launch}


TRAINER: Final = Trainer("olmo", "olmo", False, _KEYS, _olmo, cuts=True)
