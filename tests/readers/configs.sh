#!/usr/bin/env bash
# Make what the tests of emitted configs read: INTO/TRAINER, and INTO/TRAINER-packed of rows of three sequences, from a finished run
# and a model of which there is only the config.
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
"$python" -m nextlong train "$into/train.yaml" --emit axolotl "$into/axolotl"
"$python" -m nextlong train "$into/train.yaml" --set data.pack=6144 --emit axolotl "$into/axolotl-packed"
