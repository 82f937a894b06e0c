#!/usr/bin/env bash
# Run a recipe on Slurm: the steps before the encoder on one node, the encoder as an array of jobs with a GPU each, then the rest. Every job needs nextlong and
# the run directory under the same path. If a job ends early, run this script again: finished tasks are kept.
#
#     bash examples/cluster/slurm.sh RECIPE JOBS [SBATCH OPTION…]     e.g. my.yaml 64 --partition=batch --account=me
set -euo pipefail
recipe=$1
jobs=$2
shift 2
run="nextlong run $(printf %q "$recipe")"

before=$(sbatch --parsable --job-name=nextlong-before --cpus-per-task=32 --mem=128G --time=12:00:00 "$@" \
    --wrap "$run --before embed")
# An array job that fails keeps the next one from starting.
embed=$(sbatch --parsable --job-name=nextlong-embed --dependency="afterok:$before" --array="1-$jobs" --gpus-per-task=1 --ntasks=1 --cpus-per-task=8 --mem=32G \
    --time=12:00:00 "$@" --wrap "$run --set workers=1 --only-step embed --tasks \$SLURM_ARRAY_TASK_ID/$jobs")
rest=$(sbatch --parsable --job-name=nextlong-rest --dependency="afterok:$embed" --cpus-per-task=32 --mem=128G --time=24:00:00 "$@" \
    --wrap "$run")
echo "submitted: $before, then $embed ($jobs jobs), then $rest; squeue --me shows them"
