#!/usr/bin/env bash
# Train LSTF NC of Table 3 on ETT (vanilla, abc, cosformer, performer) on a machine with a GPU and no network. The published
# value is a mean over ETTh1, ETTh2 and ETTm1, multivariate and univariate: 24 runs per seed, five seeds. A call stops on
# time; repeat it until every run has its record.
#   CAB_DATA=DATA scripts/gpu_train.sh [FOLDER]        DATA/lstf/*.csv must be copied there, too (15 MB)
#   CAB_DATA=DATA scripts/gpu_train.sh --cpu [FOLDER]  six runs of two steps
# On a new machine, unpack the file of the earlier call first: mkdir -p build && tar xzf gpu.tar.gz -C build
# The own values next to the published ones: tar xzf gpu.tar.gz && cab paper table3 gpu/records --pattern NC
set -euo pipefail
STEPS=table3 exec "$(dirname "$0")/gpu.sh" "$@"
