#!/usr/bin/env bash
# Make what the readers' tests read: exports in every format, plain, and packed with a validation split, each with the rows that
# must be found in it (tests/support/reference_rows.py). INTO/demo is made of the demo's corpus; INTO/dev, if CORPORA names a folder of real
# documents (dev/*.jsonl.zst, and unpack.py for the Llama 3 tokenizer), of these.
#     [CORPORA=FOLDER] bash tests/readers/exports.sh INTO
set -euo pipefail
cd "$(dirname "$0")/../.."
into=$(realpath -m "$1")
corpora=${CORPORA:+$(realpath "$CORPORA")}
PATH=$PWD/.venv/bin:$PATH

# Rows of three sequences. torchtitan's are a token longer than T.
export_all() {
    local to=$1 recipe=$2 tokens=$3
    local plain=(--set "run_dir=$to/run" --set "compose.target_tokens=$tokens" "${@:4}")
    local packed=(--set export.validation=0.3 --set export.compression=zstd)
    local titan=("${plain[@]}" --set "export.formats=[torchtitan]")
    mkdir -p "$to"
    nextlong run "$recipe" --set name=titan "${titan[@]}" --set "export.push=$to/titan/torchtitan"
    python tests/support/reference_rows.py "$to/run@titan" "$to/titan"
    nextlong run "$recipe" --set name=titan-packed "${titan[@]}" "${packed[@]}" --set "export.pack=$((3 * tokens + 3))" \
        --set "export.push=$to/titan-packed/torchtitan"
    python tests/support/reference_rows.py "$to/run@titan-packed" "$to/titan-packed"
    nextlong run "$recipe" --set name=plain "${plain[@]}"
    nextlong export "$to/run@plain" --to parquet,arrow,jsonl,mds,megatron,axolotl,prolong,olmo --into "$to/plain"
    python tests/support/reference_rows.py "$to/run@plain" "$to/plain"
    nextlong export "$to/run@plain" --to parquet,arrow,jsonl,mds,megatron,prolong,olmo --into "$to/packed" \
        "${packed[@]}" --set "export.pack=$((3 * tokens))"
    python tests/support/reference_rows.py "$to/run@plain" "$to/packed"
}

# Small enough that a tiny model learns from it, and that Megatron's ids have two bytes. Chunks are short so that 2,048 tokens hold
# several and the negatives between them.
export_all "$into/demo" nextlong-demo/demo.yaml 2048 --set tokenizer.train=512 --set chunk.max_chars=512 --set export.shard_mb=0.05

if [[ -n $corpora && -d $corpora ]]; then
    python "$corpora/unpack.py" "$into/tokenizers"
    cat >"$into/dev.yaml" <<RECIPE
run_dir: replaced
ingest:
  sources:
    - {path: $corpora/dev/recipes.jsonl.zst, name: recipes}
    - {path: $corpora/dev/d2l.jsonl.zst, name: d2l}
    - {path: $corpora/dev/factbook.jsonl.zst, name: factbook}
    - {path: $corpora/dev/wikipedia.jsonl.zst, name: wikipedia}
tokenizer: {source: $into/tokenizers/llama3/tokenizer.json, bos: "<|begin_of_text|>", eos: "<|end_of_text|>"}
compose: {sequences: 10}
export: {formats: [parquet], shard_mb: 2}
RECIPE
    export_all "$into/dev" "$into/dev.yaml" 131072
fi
