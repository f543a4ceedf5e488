#!/usr/bin/env bash
# The stages of continuous integration, in this checkout: scripts/check.sh [STAGE...], all of them by default.
# Samples of the published data are read from CAB_DATA, by the stage `slow` alone: every test that needs them is slow.
set -euo pipefail
cd "$(dirname "$0")/.."

demo() { env -u CAB_DATA make demo; }
fast() { env -u CAB_DATA make test; }

# Attentions with their kernels, published numbers and sound modules of others, without vector instructions of PyTorch
# and with none of oneDNN beyond AVX2: 80 seconds of CPU time.
older_processor() {
    local numbers="tests/attentions tests/tools/verification tests/public_numbers tests/cab/verification/test_verification_false_alarms.py"
    env -u CAB_DATA ATEN_CPU_CAPABILITY=default ONEDNN_MAX_CPU_ISA=AVX2 make test TESTS="$numbers"
}

slow() { make test-slow; }
lint() { make lint; }

# No test may write into the checkout.
clean() {
    local changes
    changes=$(git status --porcelain)
    [ -z "$changes" ] || { echo "$changes" >&2; exit 1; }
}

stages=(demo fast older_processor slow lint clean)
[ $# -gt 0 ] || set -- "${stages[@]}"
for stage in "$@"; do
    [[ " ${stages[*]} " == *" $stage "* ]] || { echo "unknown stage '$stage'; known: ${stages[*]}" >&2; exit 2; }
    "$stage"
done
