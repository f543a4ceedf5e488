#!/usr/bin/env bash
# Train the reference results of the suite: every cell, the attentions below, seeds 1 to 3; finished results are copied
# to results/mini.
#   nice scripts/suite.sh &                          # takes hours; to resume after an interruption, repeat the command
#   CELLS="lm:gpt2:CS sum:transformer:CC" SEEDS=1 scripts/suite.sh cluster=local cluster.workers=4
# Runs and their logs stay in results/suite. Arguments are passed to `cab run`.
set -euo pipefail
cab=${CAB:-cab}
results=${RESULTS:-results/suite}
records=${RECORDS:-results/mini}
seeds=${SEEDS:-1,2,3}
attentions=${ATTENTIONS:-none,vanilla,local,linear,cosformer,performer,abc,s4d,longshort,lara,nystromformer,probsparse}
cells=${CELLS:-$(tail -n +2 configs/suite/cells.csv | cut -d, -f1-3 | tr , :)}
export OMP_NUM_THREADS=${OMP_NUM_THREADS:-1}
unset CAB_DATA  # generated data need none, and a record names the folder

keep_finished() {
    mkdir -p "$records"
    { grep -ls '"status": "finished"' "$results"/*.json || true; } | xargs -r cp -t "$records"
}
trap keep_finished EXIT

for cell in $cells; do
    IFS=: read -r task backbone pattern <<< "$cell"
    # A run that fails leaves a record that says so, and the next cell begins.
    nice -n 19 $cab run -m "task=$task" dataset=synthetic "backbone=$backbone" "pattern=$pattern" preset=mini \
        "attention=$attentions" "seed=$seeds" "results_dir=$results" device=cpu "$@" || echo "some runs of $cell failed" >&2
    keep_finished
done
