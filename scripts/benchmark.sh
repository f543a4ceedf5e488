#!/usr/bin/env bash
# Run the whole benchmark, or one pattern, with results in results/own-PRESET. Finished cells are skipped.
#   scripts/benchmark.sh paper CS --dry-run                             # what it would run, and its GPU hours
#   scripts/benchmark.sh paper CS cluster=slurm cluster.partition=gpu   # the cells as arrays of Slurm jobs
#   scripts/benchmark.sh mini all dataset=synthetic cluster=local       # one worker per GPU of this machine
# Arguments after the pattern are passed to `cab run`: task=lm, attention=vanilla,abc, seed=1,2,3, --retry failed, ...
set -euo pipefail
usage="usage: scripts/benchmark.sh paper|mini|smoke NS|CS|NC|CC|all [KEY=VALUE ...]"
preset=${1:?$usage}
pattern=${2:?$usage}
shift 2
[ "$pattern" = all ] && pattern=NS,CS,NC,CC
exec cab run -m "preset=$preset" "pattern=$pattern" "results_dir=results/own-$preset" "$@"
