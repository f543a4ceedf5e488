#!/usr/bin/env bash
# One visit to a machine with a GPU, nine minutes at most: `cab visit run`, for a machine that has Python 3.12 and a CUDA
# build of torch and may have nothing else, not even a network. Wheels are carried there, less than 60 MB.
#   scripts/gpu.sh --wheels        before the visit, where there is a network: fetch them into wheels/gpu
#   scripts/gpu.sh [FOLDER]        the visit; tables, log and records go to FOLDER (build/visit)
#   scripts/gpu.sh --cpu [FOLDER]  the same, shortened, on the CPU
# PYTHON chooses the interpreter that has torch; afterwards: cab visit merge FOLDER.
set -euo pipefail
cd "$(dirname "$0")/.."
python="${PYTHON:-python3}"
wheels=wheels/gpu

if [ "${1:-}" = --wheels ]; then
    platforms=()
    for version in manylinux_2_28 manylinux_2_27 manylinux_2_24 manylinux_2_17 manylinux2014; do
        platforms+=(--platform "${version}_x86_64")
    done
    mkdir -p "$wheels"
    # one of them is not published as a wheel, and is pure Python
    antlr=$(grep ^antlr4 scripts/gpu_wheels.txt)
    "$python" -m pip wheel -q --no-deps -w "$wheels" "$antlr"
    "$python" -m pip download -q --no-deps --only-binary=:all: --python-version 3.12 --implementation cp \
        "${platforms[@]}" --find-links "$wheels" -d "$wheels" -r scripts/gpu_wheels.txt
    du -sm "$wheels"
    exit
fi

device=(--device cuda)
if [ "${1:-}" = --cpu ]; then
    device=(--device cpu --short)
    shift
fi
status=0
"$python" -W ignore -c '
import sys
try:
    import torch
except ImportError:
    sys.exit(3)
sys.exit(0 if sys.argv[1] == "cpu" or torch.cuda.is_available() else 4)' "${device[1]}" || status=$?
case $status in
    0) ;;
    4)
        echo "torch sees no CUDA GPU here, so there is nothing to run; $0 --cpu tries the same code, shortened"
        exit 0
        ;;
    *)
        echo "$python has no torch: name one that has, as in PYTHON=/path/to/python3 $0"
        exit 1
        ;;
esac
site=build/gpu-site
export PYTHONPATH="$PWD:$PWD/$site${PYTHONPATH:+:$PYTHONPATH}"
if ! "$python" -c 'import hydra, matplotlib, pandas, tqdm; from importlib.metadata import version; version("cab-benchmark")' 2>/dev/null; then
    rm -rf "$site"
    offline() { "$python" -m pip install -qq --disable-pip-version-check --no-index --no-deps --target "$site" "$@"; }
    if ! ls "$wheels"/*.whl >/dev/null 2>&1; then
        echo "packages are missing here and $wheels is empty: run scripts/gpu.sh --wheels where there is a network"
        exit 1
    fi
    offline "$wheels"/*.whl
    offline --find-links "$wheels" . # for its entry points: its modules are those of this folder
fi
exec "$python" -m cab.cli.main visit run "${1:-build/visit}" "${device[@]}" --seconds $((515 - SECONDS))
