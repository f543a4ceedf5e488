#!/usr/bin/env bash
# Run a command with a temporary Slurm (scripts/start_slurm.sh), or without one if permissions or packages are
# missing. Usage: scripts/with_slurm.sh COMMAND...
set -euo pipefail
here=$(dirname "$(readlink -f "$0")")
if [ -z "${SLURM_CONF:-}" ] && [ "$(id -u)" -eq 0 ] && command -v apt-get >/dev/null; then
    slurm=$(mktemp -d)
    trap '"$here/stop_slurm.sh" "$slurm"; rm -rf "$slurm"' EXIT
    if "$here/start_slurm.sh" "$slurm"; then
        export SLURM_CONF=$slurm/slurm.conf
    fi
fi
"$@"
