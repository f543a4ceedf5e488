#!/usr/bin/env bash
# Build the environment of `make setup` in .venv if it is missing or outdated.
# PYTHON chooses the interpreter. pip's settings (PIP_EXTRA_INDEX_URL, PIP_FIND_LINKS) apply: if they offer a CPU
# build of torch in addition to a CUDA build, pip prefers it.
set -euo pipefail
cd "$(dirname "$0")/.."
python="${PYTHON:-python3}"
version=$("$python" -c 'import sys; print("%d.%d" % sys.version_info[:2])' 2>/dev/null) || version=none
case $version in
    none) echo "$python not found; choose an interpreter: make setup PYTHON=python3.11" >&2; exit 1 ;;
    2.* | 3.? | 3.10) echo "$python is Python $version; 3.11 or newer is required: make setup PYTHON=python3.11" >&2; exit 1 ;;
esac

# Everything that determines the environment: a different interpreter or pin rebuilds it.
wanted=$({ "$python" -VV; cat pyproject.toml constraints.txt "$0"; } | sha256sum | cut -c1-16)
[ "$(cat .venv/ready 2>/dev/null)" = "$wanted" ] && exit 0

case $version in
    3.11 | 3.12 | 3.13) ;;
    *) echo "Python $version is not tested (tested: 3.11 to 3.13)" >&2 ;;
esac
say() { echo "[$SECONDS s] $*" >&2; }
install() { .venv/bin/python -m pip install -qq --disable-pip-version-check --no-compile -c constraints.txt "$@"; }

rm -f .venv/ready
if [ "$(.venv/bin/python -VV 2>/dev/null)" != "$("$python" -VV)" ]; then
    say "making .venv with Python $version"
    "$python" -m venv --clear .venv
fi
if [ "$(uname -s)" = Linux ] && [ ! -e /proc/driver/nvidia ] && ! .venv/bin/python -m pip show -qq torch 2>/dev/null &&
    install --dry-run --report - torch 2>/dev/null | grep -q '"name": *"nvidia'; then
    say "no NVIDIA driver here, yet the torch that pip finds brings CUDA, some gigabytes:" \
        "PIP_EXTRA_INDEX_URL with the address of torch's CPU builds makes that small"
fi
say "torch ..."
install torch
say "the other packages, a minute or two ..."
install -e '.[dev,cluster,text,audio,vision,tensorboard,wandb]'
echo "$wanted" >.venv/ready
say "ready"
