#!/usr/bin/env bash
# Build the environment of `make setup` in .venv if it is missing or outdated, with uv if it is installed, else with pip.
# PYTHON chooses the interpreter. pip's settings (PIP_EXTRA_INDEX_URL, PIP_FIND_LINKS) apply to both: if they offer a
# CPU build of torch in addition to a CUDA build, it is preferred.
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
if command -v uv >/dev/null; then
    setting() { "$python" -m pip config list 2>/dev/null | sed -n "s/^[^=]*\.$1='\(.*\)'\$/\1/p" | head -n 1; }
    for name in extra-index-url=UV_INDEX index-url=UV_DEFAULT_INDEX find-links=UV_FIND_LINKS; do
        value=$(setting "${name%=*}")
        [ -z "$value" ] || export "${name#*=}=$value"
    done
    quiet=-q
    install() { uv pip install --python .venv/bin/python --index-strategy unsafe-best-match -c constraints.txt "$@"; }
else
    quiet=-qq
    install() { .venv/bin/python -m pip install --disable-pip-version-check --no-compile -c constraints.txt "$@"; }
fi

rm -f .venv/ready
if [ "$(.venv/bin/python -VV 2>/dev/null)" != "$("$python" -VV)" ]; then
    say "making .venv with Python $version"
    "$python" -m venv --clear .venv
fi
if [ "$(uname -s)" = Linux ] && [ ! -e /proc/driver/nvidia ] && [ ! -e .venv/lib/python*/site-packages/torch ] &&
    install --dry-run torch 2>&1 | grep -q nvidia; then
    say "no NVIDIA driver here, yet the torch that is found brings CUDA, some gigabytes:" \
        "PIP_EXTRA_INDEX_URL with the address of torch's CPU builds makes that small"
fi
say "torch ..."
install $quiet torch
say "the other packages ..."
install $quiet -e '.[dev,cluster,text,audio,vision,tensorboard,wandb]'
echo "$wanted" >.venv/ready
say "ready"
