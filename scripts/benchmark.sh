#!/usr/bin/env bash
# The whole benchmark, or one pattern of it, into results/own-PRESET. Finished cells are skipped.
#   scripts/benchmark.sh paper CS --dry-run                             # what it would run, and its GPU hours
#   scripts/benchmark.sh paper CS cluster=slurm cluster.partition=gpu   # the cells as arrays of Slurm jobs
#   scripts/benchmark.sh mini all dataset=synthetic cluster=local       # a worker a GPU of this machine
# What follows the pattern is given to `cab run`: task=lm, attention=vanilla,abc, seed=1,2,3, --retry failed, ...
set -euo pipefail
usage="usage: scripts/benchmark.sh paper|mini|smoke NS|CS|NC|CC|all [KEY=VALUE ...]"
preset=${1:?$usage}
pattern=${2:?$usage}
shift 2
[ "$pattern" = all ] && pattern=NS,CS,NC,CC
exec cab run -m "preset=$preset" "pattern=$pattern" "results_dir=results/own-$preset" "$@"
