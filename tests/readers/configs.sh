#!/usr/bin/env bash
# Make what the tests of emitted configs read: INTO/TRAINER, and INTO/TRAINER-packed of rows of three sequences, from a finished run
# and a model of which there is only the config; INTO/olmo-tiny, a training of two processes that fits a CPU.
#     PYTHON=python bash tests/readers/configs.sh RUN INTO
set -euo pipefail
run=$1
into=$2
python=${PYTHON:-python}
mkdir -p "$into/llama"
cat >"$into/llama/config.json" <<'CONFIG'
{"model_type": "llama", "num_hidden_layers": 32, "hidden_size": 4096, "intermediate_size": 14336, "num_attention_heads": 32,
 "num_key_value_heads": 8, "rms_norm_eps": 1e-5, "rope_theta": 500000.0, "tie_word_embeddings": false, "vocab_size": 512}
CONFIG
"$python" -m nextlong train init "$into/train.yaml" --data "$run" --model "$into/llama" --preset paper-128k \
    --set training.tokens_per_step=393216 --set hardware.count=16 --set hardware.ranks_per_row=4
emit() { "$python" -m nextlong train "$into/train.yaml" "${@:3}" --emit "$1" "$into/$2"; }
emit axolotl axolotl
emit axolotl axolotl-packed --set data.pack=6144
emit olmo olmo
# Weights so large that the loss depends on every part of the model; each step reads all rows, in whatever order.
"$python" - "$into/tiny" <<'MODEL'
import sys
import torch
from transformers import AutoModelForCausalLM, LlamaConfig

torch.manual_seed(0)
sizes = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2}
AutoModelForCausalLM.from_config(LlamaConfig(vocab_size=512, initializer_range=0.2, **sizes)).save_pretrained(sys.argv[1])
MODEL
emit olmo olmo-tiny --set model.path="$into/tiny" --set training.tokens_per_step=49152 --set training.steps=2 \
    --set training.warmup_steps=0 --set training.schedule=constant --set hardware.count=2 --set hardware.ranks_per_row=2
