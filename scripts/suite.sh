#!/usr/bin/env bash
# Train reference results of the suite: the attentions below, seeds 1 to 3, in every cell whose pattern they support;
# finished results are copied to results/core.
#   nice scripts/suite.sh &                          # takes hours; to resume after an interruption, repeat the command
#   ATTENTIONS="none vanilla" SEEDS=1,2,3,4,5 scripts/suite.sh      # the anchors
#   SUITE=mini RECORDS=results/mini SEEDS=1 scripts/suite.sh task=sum cluster=local cluster.workers=4
# Runs and their logs stay in results/suite. Arguments are passed to `cab run`.
set -euo pipefail
cab=${CAB:-cab}
suite=${SUITE:-core}
results=${RESULTS:-results/suite}
records=${RECORDS:-results/core}
seeds=${SEEDS:-1,2,3}
attentions=${ATTENTIONS:-none vanilla local linear cosformer performer abc s4d longshort lara nystromformer probsparse}
export OMP_NUM_THREADS=${OMP_NUM_THREADS:-1}
unset CAB_DATA  # generated data need none, and a record names the folder

keep_finished() {
    mkdir -p "$records"
    { grep -ls '"status": "finished"' "$results"/*.json || true; } | xargs -r cp -t "$records"
}
trap keep_finished EXIT

for attention in $attentions; do
    # A run that fails leaves a record that says so, and the next attention begins.
    nice -n 19 $cab run "suite=$suite" "attention=$attention" "seed=$seeds" "results_dir=$results" device=cpu "$@" \
        || echo "some runs of $attention failed" >&2
    keep_finished
done
