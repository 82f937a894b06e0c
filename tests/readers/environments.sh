#!/usr/bin/env bash
# Tests in which trainers' own libraries read our files, each in a new environment of its own that holds only what those
# tests import: streaming pins an old NumPy, datasets wants a new one, and their cloud clients would be a gigabyte more.
# `tests/readers/environments.sh` runs all of them, `… datasets` or `… torch` one environment.
set -euo pipefail
cd "$(dirname "$0")/../.."
export PIP_DISABLE_PIP_VERSION_CHECK=1 HF_HUB_OFFLINE=1 PYTHONPATH=src PYTHONDONTWRITEBYTECODE=1

read_in() {
    local name=$1 tests folder status=0
    folder=$(mktemp -d)
    python3 -m venv "$folder"
    case $name in
        datasets) tests=(tests/readers/test_datasets_reads.py) ;;
        torch)
            tests=(tests/readers/test_streaming_reads.py tests/readers/test_megatron_reads.py)
            # First and by exact version: anything else would bring another build along.
            "$folder/bin/pip" install --quiet torch==2.13.0
            ;;
    esac
    "$folder/bin/pip" install --quiet --no-deps --requirement "tests/readers/$name.txt"
    "$folder/bin/python" -m pytest -m readers --confcutdir=tests/readers -p no:cacheprovider "${tests[@]}" || status=$?
    rm -rf "$folder"
    return "$status"
}

for name in ${@:-datasets torch}; do
    read_in "$name"
done
