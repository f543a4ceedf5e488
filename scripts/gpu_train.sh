#!/usr/bin/env bash
# Train LSTF NC of Table 3 on ETTh1 (vanilla, abc, cosformer, performer, five seeds) on a machine with a GPU and no
# network. Repeat the call until every run has its record: it stops on time, and skips what build/gpu/records has.
#   CAB_DATA=DATA scripts/gpu_train.sh [FOLDER]        DATA/lstf/ETTh1.csv is copied there, too (2.5 MB)
#   CAB_DATA=DATA scripts/gpu_train.sh --cpu [FOLDER]  two runs of two steps
# On a new machine, unpack the file of the earlier call first: mkdir -p build && tar xzf gpu.tar.gz -C build
# The first own row of Table 3: tar xzf gpu.tar.gz && cab paper table3 gpu/records
set -euo pipefail
STEPS=table3 exec "$(dirname "$0")/gpu.sh" "$@"
