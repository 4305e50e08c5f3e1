#!/usr/bin/env bash
# Runs the tests in an environment that scripts/install.sh makes where it is not there yet. Arguments go to pytest:
#
#   bash scripts/test.sh                          everything
#   bash scripts/test.sh tests/cluster -k kill    some
#
# WORKERS=2 processes run test files side by side; WORKERS=0 is one after another, for a debugger. Ends with pytest's exit
# code.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

VENV=${VENV:-.venv}
bash scripts/install.sh --dev "$VENV"
export OMP_NUM_THREADS=1 TOKENIZERS_PARALLELISM=false HF_HUB_OFFLINE=1
exec "$VENV/bin/python" -m pytest -q --durations=10 --numprocesses "${WORKERS:-2}" --dist loadfile \
    --no-loadscope-reorder "$@"
