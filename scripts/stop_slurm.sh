#!/usr/bin/env bash
# End the Slurm that scripts/start_slurm.sh started in FOLDER. Usage: scripts/stop_slurm.sh FOLDER
set -euo pipefail
folder=${1:?usage: stop_slurm.sh FOLDER}
for name in slurmd slurmctld munged; do
    [ -f "$folder/$name.pid" ] || continue
    pid=$(cat "$folder/$name.pid")
    kill "$pid" 2>/dev/null || true
    for _ in $(seq 100); do
        kill -0 "$pid" 2>/dev/null || break
        sleep 0.1
    done
    kill -KILL "$pid" 2>/dev/null || true
    rm -f "$folder/$name.pid"
done
