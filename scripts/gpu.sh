#!/usr/bin/env bash
# Verify, time and train on a GPU in under ten minutes, on a machine that has Python 3.12 and a CUDA build of torch and
# needs nothing else, not even a network: the missing packages (less than 60 MB) can be copied there.
#   scripts/gpu.sh --download-wheels  on a machine with a network: download them into wheels/gpu
#   scripts/gpu.sh [FOLDER]           on the machine with the GPU; tables and results are written to FOLDER (build/gpu)
#   scripts/gpu.sh --cpu [FOLDER]     the same commands, shortened, on a CPU
# PYTHON selects the interpreter that has torch.
set -euo pipefail
cd "$(dirname "$0")/.."
python="${PYTHON:-python3}"
wheels=wheels/gpu

if [ "${1:-}" = --download-wheels ]; then
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

device=cuda
if [ "${1:-}" = --cpu ]; then
    device=cpu
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
site=build/gpu-site
export PYTHONPATH="$PWD:$PWD/$site${PYTHONPATH:+:$PYTHONPATH}"
if ! "$python" -c 'import hydra, matplotlib, pandas, tqdm; from importlib.metadata import version; version("cab-benchmark")' 2>/dev/null; then
    rm -rf "$site"
    offline() { "$python" -m pip install -qq --disable-pip-version-check --no-index --no-deps --target "$site" "$@"; }
    if ! ls "$wheels"/*.whl >/dev/null 2>&1; then
        echo "packages are missing and $wheels is empty; on a machine with a network run: scripts/gpu.sh --download-wheels"
        exit 1
    fi
    offline "$wheels"/*.whl
    offline --find-links "$wheels" . # for its entry points: its modules are those of this folder
fi

out="${1:-build/gpu}"
mkdir -p "$out"
cab() { timeout "$1" "$python" -m cab.cli.main "${@:2}" || echo "exit status $?: cab ${*:2}" | tee -a "$out/log.txt" >&2; }
tokens=(1024 4096 16384)
types=(float32 bfloat16)
names=()
if [ "$device" = cpu ]; then
    tokens=(64)
    types=(float32)
    names=(vanilla linear)
fi
cab 150 verify "${names[@]}" --quick --device "$device" --csv >"$out/verify.csv"
for dtype in "${types[@]}"; do
    cab 120 efficiency "${names[@]}" --device "$device" --dtype "$dtype" --pattern CS --phase forward+backward decode \
        --lengths "${tokens[@]}" --batch-size 1 --no-verify --out "$out/efficiency-$dtype.csv" >"$out/efficiency-$dtype.txt"
done
cab 180 run -m task=lm,lstf dataset=synthetic attention=vanilla,linear pattern=CS preset=smoke seed=1 results_dir="$out/records"
echo "tables and results are in $out" >&2
