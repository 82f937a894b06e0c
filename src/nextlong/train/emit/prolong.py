"""ProLong: arguments for its train_language_model, over MDS; packed rows keep their sequences apart by `indices`."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from typing import Final

from nextlong.errors import RecipeError
from nextlong.train.emit.expressed import Keys
from nextlong.train.emit.facts import Facts, shell, torchrun

KEYS: Final[Keys] = {
    **dict.fromkeys(("seed", "training", "model.rope_base", "model.rope_scaling", "checkpoints.every_steps")),
    "attention": ("sequence", "row"),
    "training.micro_batch_rows": (1,),
    "training.eps": (1e-8,),
    "training.schedule": ("cosine", "linear"),
    "memory.checkpointing": ("layers",),
}


def files(facts: Facts) -> Mapping[str, str]:
    """Return `launch.sh`; PROLONG names a checkout of the trainer."""
    lines = [
        ': "${PROLONG:?a checkout of princeton-nlp/ProLong}"',
        'here=$PWD; cd "$PROLONG"',
        "export LOGIT_BLOCK_SIZE=2048 WANDB_MODE=offline TOKENIZERS_PARALLELISM=true",
        *(["export FSDP_SHARDING_STRATEGY=1 FSDP_STATE_DICT_TYPE=FULL_STATE_DICT"]),
        *torchrun(facts, "-m training.train_language_model", *arguments(facts)),
    ]
    return {"launch.sh": shell(lines)}


def arguments(facts: Facts) -> list[str]:
    """Return the arguments, as its train_512K.sh has them."""
    recipe, training = facts.recipe, facts.recipe.training
    if facts.llama3_scaling():
        raise RecipeError(
            "model.rope_scaling=keep: ProLong computes RoPE from its base alone; use axolotl or torchtitan"
        )
    model = shlex.quote(str(recipe.model.path))
    data = "$here/data/train" if recipe.data.validation else "$here/data"
    options = [
        "--do_train --report_to wandb --run_name nextlong",
        f"--model_name {model} --tokenizer_name {model}",
        '--output_dir "$here/out"',
        f'--config_overrides "rope_theta={facts.rope_base():.0f}"',
        f"--per_device_train_batch_size 1 --gradient_accumulation_steps {facts.accumulation}",
        f"--per_device_max_tokens {facts.row_tokens} --seq_parallel_size {facts.shared_by}",
        f"--learning_rate {training.lr} --min_lr_ratio {training.min_lr_ratio} --lr_scheduler_type {training.schedule}",
        f"--warmup_steps {training.warmup_steps} --max_steps {training.steps}",
        f"--adam_beta1 {training.beta1} --adam_beta2 {training.beta2} --weight_decay {training.weight_decay}",
        f"--max_grad_norm {training.clip or 1e9} --optim adamw_torch --seed {recipe.seed}",
        f"--save_steps {recipe.checkpoints.every_steps} --logging_steps 1 --disable_tqdm true",
        "--dataloader_num_workers 1 --remove_unused_columns false --ddp_find_unused_parameters false",
        '--fsdp "auto_wrap" --gradient_checkpointing --cuda_empty_cache',
        f'--tokenized_mds_train "{data}@1.0"',
    ]
    return [*options[:6], *(["--bf16"] if training.precision == "bf16" else []), *options[6:]]
