#!/usr/bin/env bash
# End the Slurm that scripts/start_slurm.sh started in FOLDER. Usage: scripts/stop_slurm.sh FOLDER
set -euo pipefail
folder=${1:?usage: stop_slurm.sh FOLDER}
for name in slurmd slurmctld munged; do
    if [ -f "$folder/$name.pid" ] && kill "$(cat "$folder/$name.pid")" 2>/dev/null; then
        while kill -0 "$(cat "$folder/$name.pid" 2>/dev/null || echo 0)" 2>/dev/null && [ -f "$folder/$name.pid" ]; do sleep 0.1; done
    fi
    rm -f "$folder/$name.pid"
done
