#!/usr/bin/env bash
# Measure on a machine with a GPU and no network, in at most BUDGET seconds (520), and write one file, gpu.tar.gz.
#   scripts/gpu.sh --download-wheels  on a machine with a network: download the missing packages to wheels/gpu (8 MB)
#   scripts/gpu.sh [FOLDER]           on the machine with the GPU; the file is written to FOLDER (build)
#   scripts/gpu.sh --cpu [FOLDER]     the same steps, shortened, on a CPU
# PYTHON selects the interpreter that has torch and the packages of scripts/gpu_machine.txt. STEPS="roofs decoding" selects
# steps; docs/internals/gpu-kernels.md lists them.
set -euo pipefail
cd "$(dirname "$0")/.."
python="${PYTHON:-python3}"
wheels=wheels/gpu

if [ "${1:-}" = --download-wheels ]; then
    platforms=()
    for version in manylinux_2_28 manylinux_2_27 manylinux_2_24 manylinux_2_17 manylinux2014; do
        platforms+=(--platform "${version}_x86_64")
    done
    rm -rf "$wheels"
    mkdir -p "$wheels"
    # one of them is not published as a wheel, and is pure Python; the last is this project
    antlr=$(grep ^antlr4 scripts/gpu_wheels.txt)
    "$python" -m pip wheel -q --no-deps -w "$wheels" "$antlr" .
    "$python" -m pip download -q --no-deps --only-binary=:all: --python-version 3.12 --implementation cp \
        "${platforms[@]}" --find-links "$wheels" -d "$wheels" -r scripts/gpu_wheels.txt
    du -sm "$wheels"
    exit
fi

device=cuda
budget="${BUDGET:-520}"
if [ "${1:-}" = --cpu ]; then
    device=cpu
    budget="${BUDGET:-3600}"
    shift
fi
status=0
"$python" -W ignore -c '
import sys
try:
    import torch
except ImportError:
    sys.exit(3)
sys.exit(0 if sys.argv[1] == "cpu" or torch.cuda.is_available() else 4)' "$device" || status=$?
case $status in
    0) ;;
    4)
        echo "torch finds no CUDA GPU; to run a shortened version on the CPU: $0 --cpu"
        exit 0
        ;;
    *)
        echo "torch is not installed for $python; choose an interpreter: PYTHON=/path/to/python3 $0"
        exit 1
        ;;
esac
export PYTHONPATH="$PWD${PYTHONPATH:+:$PYTHONPATH}"
if ! "$python" -c 'from importlib.metadata import version; version("cab-benchmark")' 2>/dev/null; then
    site=build/gpu-site
    export PYTHONPATH="$PWD:$PWD/$site" # the modules of this folder, the entry points of the wheel
    if ! cmp -s scripts/gpu_wheels.txt "$site/gpu_wheels.txt"; then
        if ! ls "$wheels"/*.whl >/dev/null 2>&1; then
            echo "packages are missing and $wheels is empty; on a machine with a network run: $0 --download-wheels"
            exit 1
        fi
        rm -rf "$site"
        "$python" -m pip install -qq --disable-pip-version-check --no-index --no-deps --no-compile --target "$site" \
            "$wheels"/*.whl
        cp scripts/gpu_wheels.txt "$site"
    fi
fi
read -ra steps <<<"${STEPS:-}"
exec "$python" -W ignore -m tools.gpu.supervisor "${1:-build}" --device "$device" --seconds $((budget - SECONDS)) \
    --steps "${steps[@]}"
