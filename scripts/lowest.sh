#!/usr/bin/env bash
# Run a selection of the tests with the lowest versions that pyproject.toml declares, in .venv-lowest (`make test-lowest`).
set -euo pipefail
cd "$(dirname "$0")/.."
python="${PYTHON:-python3}"
wanted=$({ "$python" -VV; cat pyproject.toml constraints-lowest.txt "$0"; } | sha256sum | cut -c1-16)
if [ "$(cat .venv-lowest/ready 2>/dev/null)" != "$wanted" ]; then
    "$python" -m venv --clear .venv-lowest
    .venv-lowest/bin/python -m pip install -qq --disable-pip-version-check --no-compile -c constraints-lowest.txt \
        -e '.[text,audio,vision,tensorboard,wandb,cluster,testing,cuda]' hypothesis
    echo "$wanted" >.venv-lowest/ready
fi
OMP_NUM_THREADS=1 .venv-lowest/bin/python -m pytest tests/project/test_packaging.py tests/cab/registry/test_registries.py \
    tests/cab/config/test_compose.py tests/cab/cli/test_main_start_up.py tests/cab/cli/test_run.py
