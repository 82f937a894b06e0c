"""Megatron-LM and GPT-NeoX: the same .bin/.idx for both; arguments of one, a YAML of the other, which the paper trained with."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from typing import Final

import yaml

from nextlong.errors import RecipeError
from nextlong.plain_data import Json
from nextlong.train.emit.expressed import Keys
from nextlong.train.emit.facts import Facts, shell, torchrun

KEYS: Final[Keys] = {
    **dict.fromkeys(("seed", "training", "model.rope_base", "model.rope_scaling", "checkpoints.every_steps")),
    "attention": ("sequence", "row"),
    "training.micro_batch_rows": (1,),
    "memory.checkpointing": ("layers", "none"),
}


def files(facts: Facts) -> Mapping[str, str]:
    """Return `launch.sh` for Megatron-LM (MEGATRON names a checkout) and `neox.yaml`."""
    launch = [
        ': "${MEGATRON:?a checkout of NVIDIA/Megatron-LM}" "${CHECKPOINT:?the model, converted to Megatron}"',
        *torchrun(facts, '"$MEGATRON/pretrain_gpt.py"', *arguments(facts)),
    ]
    text_of = {"launch.sh": shell(launch)}
    if not facts.llama3_scaling():  # which GPT-NeoX does not know
        text_of["neox.yaml"] = yaml.safe_dump(neox(facts), sort_keys=False, width=120)
    return text_of


def arguments(facts: Facts) -> list[str]:
    """Return the arguments of pretrain_gpt.py."""
    recipe, training, sizes = facts.recipe, facts.recipe.training, facts.architecture()
    _check_slices(facts)
    return [
        f"--train-data-path {shlex.join(prefixes(facts, 'train'))}",
        *([f"--valid-data-path {shlex.join(prefixes(facts, 'validation'))}"] if recipe.data.validation else []),
        f"--tokenizer-type HuggingFaceTokenizer --tokenizer-model {shlex.quote(str(recipe.model.path))}",
        f"--seq-length {facts.row_tokens} --max-position-embeddings {facts.row_tokens}",
        f"--position-embedding-type rope --rotary-base {facts.rope_base():.0f} --use-rotary-position-embeddings",
        *_scaling(facts),
        f"--num-layers {sizes['num_hidden_layers']} --hidden-size {sizes['hidden_size']}",
        f"--ffn-hidden-size {sizes['intermediate_size']} --num-attention-heads {sizes['num_attention_heads']}",
        f"--group-query-attention --num-query-groups {sizes['num_key_value_heads']}",
        f"--normalization RMSNorm --norm-epsilon {sizes['rms_norm_eps']} --swiglu --disable-bias-linear",
        *([] if sizes.get("tie_word_embeddings") else ["--untie-embeddings-and-output-weights"]),
        f"--context-parallel-size {facts.shared_by} --micro-batch-size 1 --global-batch-size {facts.rows_per_step}",
        "--use-distributed-optimizer --attention-backend flash --attention-dropout 0.0 --hidden-dropout 0.0",  # 0.1 if not said
        *_recomputed(recipe.memory.checkpointing),
        f"--train-iters {training.steps} --lr {training.lr} --min-lr {training.lr * training.min_lr_ratio}",
        f"--lr-decay-style {training.schedule} --lr-decay-iters {training.steps} --lr-warmup-iters {training.warmup_steps}",
        f"--adam-beta1 {training.beta1} --adam-beta2 {training.beta2} --adam-eps {training.eps}",
        f"--weight-decay {training.weight_decay} --clip-grad {training.clip or 0.0} --seed {recipe.seed} --eod-mask-loss",
        *(["--bf16"] if training.precision == "bf16" else []),
        *(["--reset-position-ids --reset-attention-mask"] if _keeps_apart(facts) else []),
        f'--load "$CHECKPOINT" --finetune --save out --save-interval {recipe.checkpoints.every_steps}',
    ]


def neox(facts: Facts) -> Json:
    """Return the settings of GPT-NeoX."""
    recipe, training, sizes = facts.recipe, facts.recipe.training, facts.architecture()
    train = prefixes(facts, "train")
    held_out = prefixes(facts, "validation") if recipe.data.validation else train
    return {
        "train_data_paths": train,
        "valid_data_paths": held_out,
        "test_data_paths": held_out,
        "data_impl": "mmap",
        "tokenizer_type": "HFTokenizer",
        "vocab_file": f"{recipe.model.path}/tokenizer.json",
        "seq_length": facts.row_tokens,
        "max_position_embeddings": facts.row_tokens,
        "eod_mask_loss": True,
        "reset_attention_mask": _keeps_apart(facts),
        "reset_position_ids": _keeps_apart(facts),
        "pos_emb": "rotary",
        "rotary_pct": 1.0,
        "rotary_emb_base": int(facts.rope_base()),
        "num_layers": sizes["num_hidden_layers"],
        "hidden_size": sizes["hidden_size"],
        "intermediate_size": sizes["intermediate_size"],
        "num_attention_heads": sizes["num_attention_heads"],
        "num_kv_heads": sizes["num_key_value_heads"],
        "norm": "rmsnorm",
        "rms_norm_epsilon": sizes["rms_norm_eps"],
        "activation": "swiglu",
        "no_weight_tying": not sizes.get("tie_word_embeddings", False),
        "use_bias_in_attn_linear": False,
        "use_bias_in_mlp": False,
        "use_bias_in_norms": False,
        "attention_config": [[["flash"], sizes["num_hidden_layers"]]],
        "attention_dropout": 0.0,  # 0.1 if not said, as the next
        "hidden_dropout": 0.0,
        "optimizer": {
            "type": "Adam",
            "params": {"lr": training.lr, "betas": [training.beta1, training.beta2], "eps": training.eps},
        },
        "min_lr": training.lr * training.min_lr_ratio,
        "lr_decay_style": training.schedule,
        "lr_decay_iters": training.steps,
        "train_iters": training.steps,
        "warmup": training.warmup_steps / training.steps,
        "gradient_clipping": training.clip or 0.0,
        "weight_decay": training.weight_decay,
        "precision": "bfloat16" if training.precision == "bf16" else "fp32",
        "train_micro_batch_size_per_gpu": 1,
        "gradient_accumulation_steps": facts.accumulation,
        "checkpoint_activations": recipe.memory.checkpointing != "none",
        "save": "out",
        "checkpoint_factor": recipe.checkpoints.every_steps,
        "seed": recipe.seed,
    }


def prefixes(facts: Facts, split: str) -> list[str]:
    """Return the prefixes of the exported pairs of a split."""
    folder = facts.data / split if facts.recipe.data.validation else facts.data
    return [str(path.with_suffix("")) for path in sorted(folder.glob("*.bin"))]


def _recomputed(checkpointing: str) -> list[str]:
    """Return the arguments that keep each layer's input alone; Megatron's `--recompute-activations` recomputes attention only."""
    if checkpointing == "none":
        return []
    return ["--recompute-granularity full --recompute-method uniform --recompute-num-layers 1"]


def _scaling(facts: Facts) -> list[str]:
    """Return the arguments of Llama 3.1's RoPE scaling; Megatron-LM takes its factor and has the rest built in."""
    scaling = facts.llama3_scaling()
    if scaling is None:
        return []
    built_in = {"low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 8192}
    other = {key: scaling.get(key) for key, value in built_in.items() if scaling.get(key) != value}
    if other:
        raise RecipeError(
            f"model.rope_scaling=keep: Megatron-LM has {built_in} built in, and the model has {other}; set "
            "model.rope_scaling=replace, or use axolotl"
        )
    return [f"--use-rope-scaling --rope-scaling-factor {scaling['factor']}"]


def _keeps_apart(facts: Facts) -> bool:
    return facts.recipe.data.pack is not None and facts.recipe.attention == "sequence"


def _check_slices(facts: Facts) -> None:
    """Context parallelism gives each rank two slices of a document, so documents are multiples of 2 · ranks tokens."""
    slices = 2 * facts.shared_by
    if facts.sequence_tokens % slices:
        raise RecipeError(
            f"sequences of {facts.sequence_tokens:,} tokens do not go evenly into the {slices} slices of context parallelism over "
            f"{facts.shared_by} ranks; set hardware.ranks_per_row so that they do, or use another length"
        )
