#!/usr/bin/env bash
# Time, train and verify on a GPU in at most nine minutes, on a machine that has Python 3.12 and a CUDA build of torch
# and needs nothing else, not even a network: the missing packages (about 100 MB) can be copied there.
#   scripts/gpu.sh --download-wheels  on a machine with a network: download them into wheels/gpu
#   scripts/gpu.sh [FOLDER]           on the machine with the GPU; tables and results are written to FOLDER (build/gpu)
#   scripts/gpu.sh --cpu [FOLDER]     the same order, shortened, on a CPU, whose costs are those of float32
# PYTHON selects the interpreter that has torch. The most important tables come first: each command may use all the
# seconds that remain of BUDGET (540), and each table contains what was measured until then.
# docs/internals/gpu-kernels.md estimates the seconds of each command.
set -euo pipefail
cd "$(dirname "$0")/.."
python="${PYTHON:-python3}"
budget="${BUDGET:-540}"
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
out="${1:-build/gpu}"
mkdir -p "$out"
exec 2> >(tee -a "$out/log.txt" >&2)
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
    export PYTHONPATH="$PWD:$PWD/$site"
    if ! cmp -s scripts/gpu_wheels.txt "$site/gpu_wheels.txt"; then
        if ! ls "$wheels"/*.whl >/dev/null 2>&1; then
            echo "packages are missing and $wheels is empty; on a machine with a network run: $0 --download-wheels"
            exit 1
        fi
        rm -rf "$site"
        offline() {
            "$python" -m pip install -qq --disable-pip-version-check --no-index --no-deps --target "$site" "$@"
        }
        offline "$wheels"/*.whl
        offline --find-links "$wheels" . # for its entry points: its modules are those of this folder
        cp scripts/gpu_wheels.txt "$site"
    fi
fi

# attentions whose kernels are tuned at their first call are in groups of their own, so that other tables do not wait
groups=(
    "vanilla local differential mla linear performer based abc forgetting moba nsa"
    "gla hgrn2 rwkv6"
    "deltanet gated_deltanet deltaproduct"
    "retention lightning ssd mamba3 mlstm"
    "rwkv7 kda gated_deltanet_2 comba"
)
read -ra names <<<"${groups[*]}"
others=() # all
lengths=(1024 4096 16384)
repeats=10
dtype=bfloat16
decoding=(decode decode-graph)
training=(backbone.embed_dim=256 trainer.max_steps=200)
if [ "$device" = cpu ]; then
    names=(vanilla gla)
    others=(cosformer)
    lengths=(64)
    repeats=1
    dtype=float32
    decoding=(decode)
    training=(trainer.max_steps=2)
fi

report() { # what the tables were measured with
    nvidia-smi || true
    git log -1 --format='commit %H' 2>/dev/null || true
    "$python" -W ignore - "$device" <<'PYTHON'
import platform
import sys
from importlib.metadata import PackageNotFoundError, version

import torch

print("python", platform.python_version())
for name in ("torch", "triton", "fla-core", "einops", "numpy"):
    try:
        print(name, version(name))
    except PackageNotFoundError:
        print(name, "is not installed")
if sys.argv[1] == "cuda":
    print("CUDA", torch.version.cuda, "cuDNN", torch.backends.cudnn.version(), torch.cuda.get_device_properties(0))
PYTHON
}
cab() { # one command, ended when the budget is spent; SECONDS counts from the start of this script
    local begin=$SECONDS left=$((budget - SECONDS)) status=0
    if [ "$left" -le 3 ]; then
        echo "no time for: cab $*" >&2
        return
    fi
    timeout -k 5 "$left" "$python" -W ignore tools/gpu/gpu_cab.py "$@" || status=$?
    echo "$((SECONDS - begin)) s, exit status $status: cab $*" >&2
}
cost() { # TABLE DTYPE PATTERN OPTION...
    cab efficiency "${@:4}" --device "$device" --dtype "$2" --pattern "$3" --batch-size 1 --repeats "$repeats" \
        --no-verify --out "$out/efficiency-$1.csv"
}
report >"$out/environment.txt"
for number in "${!groups[@]}"; do
    read -ra members <<<"${groups[$number]}"
    cost "$((number + 1))" "$dtype" CS "${members[@]}" --phase forward+backward --lengths "${lengths[@]}"
done
cost decode "$dtype" CS "${names[@]}" --phase "${decoding[@]}" --lengths "${lengths[@]:0:2}"
cab run -m task=lm dataset=synthetic attention=gla,vanilla pattern=CS preset=smoke seed=1 trainer.precision=bf16-mixed \
    "${training[@]}" results_dir="$out/records"
cab verify "${names[@]}" --pattern CS --quick --device "$device" --csv >"$out/verify.csv"
for pattern in CS NS; do
    cost "all-$pattern" "$dtype" "$pattern" "${others[@]}" --phase forward+backward --lengths "${lengths[@]:0:1}"
done
cost float32 float32 CS "${names[@]}" --phase forward+backward --lengths "${lengths[@]}"
echo "$SECONDS s; tables and results are in $out" >&2
