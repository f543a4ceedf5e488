#!/usr/bin/env bash
# Build the environment of engine=fairseq in .venv-fairseq. fairseq and its packages are built once per set of pins, in
# the cache, and shared by all checkouts, each with its own code and plug-ins.
set -euo pipefail
cd "$(dirname "$0")/.."
python="${PYTHON:-python3}"
key=$({ "$python" -VV; cat constraints-fairseq.txt; } | sha256sum | cut -c1-16)
packages="${CAB_CACHE:-$HOME/.cache/cab}/fairseq-$key"
mkdir -p "$packages" 2>/dev/null || packages="${TMPDIR:-/tmp}/cab-$(id -u)/fairseq-$key" # the home may not be writable

mkdir -p "$packages"
exec 9>"$packages.lock" && flock 9
if [ ! -e "$packages/complete" ]; then
    echo "building fairseq in $packages (once; takes minutes)" >&2
    "$python" -m venv --clear "$packages"
    install() { "$packages/bin/pip" install -qq --disable-pip-version-check -c constraints-fairseq.txt "$@"; }
    install torch setuptools wheel
    install cython numpy cffi hydra-core omegaconf regex sacrebleu tqdm bitarray scikit-learn packaging pydantic ninja hatchling editables
    install --no-build-isolation --no-deps fairseq-fixed # it asks for versions that no longer install
    touch "$packages/complete"
fi

"$python" -m venv --clear --without-pip .venv-fairseq
site() { "$1/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))'; }
echo "import site; site.addsitedir('$(site "$packages")')" >"$(site .venv-fairseq)/fairseq-packages.pth"
.venv-fairseq/bin/python -m pip install -qq --disable-pip-version-check --no-deps --no-build-isolation -e .
for program in "$packages"/bin/fairseq-*; do
    { # as pip does for a path with spaces, which `#!` cannot have: a line for sh that is a string for Python
        printf '%s\n' '#!/bin/sh' "'''exec' \"$PWD/.venv-fairseq/bin/python\" \"\$0\" \"\$@\"" "' '''"
        tail -n +2 "$program"
    } >".venv-fairseq/bin/${program##*/}"
    chmod +x ".venv-fairseq/bin/${program##*/}"
done
.venv-fairseq/bin/python -c '
import cab_fairseq, fairseq, torch
from cab.registry.registries import ATTENTIONS
print(f"fairseq {fairseq.__version__} on torch {torch.__version__}, {len(ATTENTIONS.names())} attentions of CAB")'
