"""What is emitted for trainers that no package installs: only arguments that they know, by names taken down from their sources.

Names and defaults are facts read in: NVIDIA/Megatron-LM, megatron/training/arguments.py; EleutherAI/gpt-neox,
configs/neox_arguments.md and megatron/neox_arguments/neox_args.py; princeton-nlp/ProLong, training/train_language_model.py,
training/trainer.py and train_512K.sh. A new argument of ours fails here until it was looked up there.
"""

import argparse
import json
import shlex

import pytest
import yaml

from llama_config import LLAMA
from nextlong.train.emit import emit
from nextlong.train.presets import recipe_from

SWITCHES = [
    "use-rotary-position-embeddings", "use-rope-scaling", "group-query-attention", "swiglu", "disable-bias-linear",
    "untie-embeddings-and-output-weights", "use-distributed-optimizer", "eod-mask-loss", "bf16", "reset-position-ids",
    "reset-attention-mask", "finetune",
]  # fmt: skip
MEGATRON = {
    "train-data-path": "+", "valid-data-path": "+", "tokenizer-type": {"HuggingFaceTokenizer"}, "tokenizer-model": str,
    "seq-length": int, "max-position-embeddings": int, "position-embedding-type": {"rope"}, "rotary-base": int,
    "rope-scaling-factor": float, "num-layers": int, "hidden-size": int, "ffn-hidden-size": int, "num-attention-heads": int,
    "num-query-groups": int, "normalization": {"LayerNorm", "RMSNorm"}, "norm-epsilon": float, "context-parallel-size": int,
    "micro-batch-size": int, "global-batch-size": int, "attention-backend": {"flash", "fused", "unfused", "local", "auto"},
    "attention-dropout": float, "hidden-dropout": float, "recompute-granularity": {"full", "selective"},
    "recompute-method": {"uniform", "block"}, "recompute-num-layers": int, "train-iters": int, "lr": float, "min-lr": float,
    "lr-decay-style": {"constant", "linear", "cosine", "inverse-square-root", "WSD"}, "lr-decay-iters": int,
    "lr-warmup-iters": int, "adam-beta1": float, "adam-beta2": float, "adam-eps": float, "weight-decay": float,
    "clip-grad": float, "seed": int, "load": str, "save": str, "save-interval": int,
}  # fmt: skip
PROLONG_SWITCHES = ["do_train", "bf16", "gradient_checkpointing", "cuda_empty_cache"]
PROLONG = {
    "report_to": str, "run_name": str, "model_name": str, "tokenizer_name": str, "output_dir": str, "config_overrides": str,
    "per_device_train_batch_size": int, "gradient_accumulation_steps": int, "per_device_max_tokens": int,
    "seq_parallel_size": int, "learning_rate": float, "min_lr_ratio": float, "lr_scheduler_type": {"cosine", "linear", "constant"},
    "warmup_steps": int, "max_steps": int, "adam_beta1": float, "adam_beta2": float, "weight_decay": float, "max_grad_norm": float,
    "optim": {"adamw_torch"}, "seed": int, "save_steps": int, "logging_steps": int, "disable_tqdm": {"true"},
    "dataloader_num_workers": int, "remove_unused_columns": {"false"}, "ddp_find_unused_parameters": {"false"},
    "fsdp": {"auto_wrap"}, "tokenized_mds_train": "+",
}  # fmt: skip
NEOX = [
    "train_data_paths", "valid_data_paths", "test_data_paths", "data_impl", "tokenizer_type", "vocab_file", "seq_length",
    "max_position_embeddings", "eod_mask_loss", "reset_attention_mask", "reset_position_ids", "pos_emb", "rotary_pct",
    "rotary_emb_base", "num_layers", "hidden_size", "intermediate_size", "num_attention_heads", "num_kv_heads", "norm",
    "rms_norm_epsilon", "activation", "no_weight_tying", "use_bias_in_attn_linear", "use_bias_in_norms", "use_bias_in_mlp",
    "attention_config", "attention_dropout", "hidden_dropout", "optimizer", "min_lr", "lr_decay_style", "lr_decay_iters",
    "train_iters", "warmup", "gradient_clipping", "weight_decay", "precision", "train_micro_batch_size_per_gpu",
    "gradient_accumulation_steps", "checkpoint_activations", "save", "checkpoint_factor", "seed",
]  # fmt: skip


def parser(switches, options):
    found = argparse.ArgumentParser(allow_abbrev=False, exit_on_error=False)
    for name in switches:
        found.add_argument(f"--{name}", action="store_true")
    for name, kind in options.items():
        how = {"nargs": "+"} if kind == "+" else {"choices": kind} if isinstance(kind, set) else {"type": kind}
        found.add_argument(f"--{name}", **how)
    return found


def read(script, program, switches, options):
    """Parse what the launch script hands to a program, as a shell would cut it."""
    words = shlex.split(script.read_text().split(program, 1)[1].replace("\\\n", " "))
    return vars(parser(switches, options).parse_args(words))


@pytest.fixture
def emitted(ended_run, tmp_path):
    """A function that emits a recipe for a trainer; returns the folder."""

    def write(name, *overrides):
        from rich.console import Console

        (tmp_path / "llama").mkdir(exist_ok=True)
        (tmp_path / "llama" / "config.json").write_text(json.dumps(LLAMA))
        changes = ("training.tokens_per_step=65536", "hardware.count=16", "hardware.ranks_per_row=4", *overrides)
        data, model = {"runs": [str(ended_run)]}, str(tmp_path / "llama")
        recipe = recipe_from("paper-128k", out=str(tmp_path / "out"), data=data, model=model, overrides=changes)
        emit(recipe, name, tmp_path / name, Console(quiet=True))
        return tmp_path / name

    return write


EVERYTHING = ("data.pack=8192", "data.validation=0.3", "training.min_lr_ratio=0.1")


@pytest.mark.parametrize("overrides", [(), EVERYTHING])
def test_megatron(emitted, overrides):
    given = read(emitted("megatron", *overrides) / "launch.sh", 'pretrain_gpt.py"', SWITCHES, MEGATRON)
    assert (given["attention_dropout"], given["hidden_dropout"]) == (0.0, 0.0)  # 0.1 where it is left out
    assert (given["recompute_granularity"], given["recompute_method"], given["recompute_num_layers"]) == (
        "full",
        "uniform",
        1,
    )
    assert (given["lr"], given["adam_beta2"], given["adam_eps"], given["clip_grad"]) == (4e-5, 0.95, 1e-8, 1.0)
    assert (given["rotary_base"], given["num_query_groups"], given["norm_epsilon"]) == (200_000_000, 8, 1e-5)
    assert given["reset_attention_mask"] == given["reset_position_ids"] == bool(overrides)


def test_megatron_with_every_layer_kept(emitted):
    launch = emitted("megatron", "memory.checkpointing=none") / "launch.sh"
    assert read(launch, 'pretrain_gpt.py"', SWITCHES, MEGATRON)["recompute_granularity"] is None


@pytest.mark.parametrize("overrides", [(), EVERYTHING])
def test_prolong(emitted, overrides):
    given = read(emitted("prolong", *overrides) / "launch.sh", "train_language_model", PROLONG_SWITCHES, PROLONG)
    assert (given["learning_rate"], given["adam_beta2"], given["max_steps"]) == (4e-5, 0.95, 1000)
    assert given["bf16"]
    assert given["gradient_checkpointing"]


@pytest.mark.parametrize("overrides", [(), EVERYTHING])
def test_neox(emitted, overrides):
    given = yaml.safe_load((emitted("megatron", *overrides) / "neox.yaml").read_text())
    assert set(given) <= set(NEOX)
    assert (given["attention_dropout"], given["hidden_dropout"]) == (0.0, 0.0)  # 0.1 where it is left out
    biases = [given[f"use_bias_in_{place}"] for place in ("attn_linear", "norms", "mlp")]
    assert biases == [False] * 3  # Llama has none, and NeoX has them where it is not told
    assert (given["norm"], given["activation"], given["pos_emb"]) == ("rmsnorm", "swiglu", "rotary")
    assert given["optimizer"]["params"] == {"lr": 4e-5, "betas": [0.9, 0.95], "eps": 1e-8}
