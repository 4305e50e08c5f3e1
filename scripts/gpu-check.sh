#!/usr/bin/env bash
# What only a GPU can run, in about five minutes on one of them; with two, NCCL as well. Run it before the first job on a
# new machine or image, and read docs/gpu-checklist.md for what it does not cover.
#
#   bash scripts/gpu-check.sh                 everything
#   bash scripts/gpu-check.sh -k training     some: arguments go to pytest
#
# Uses .venv (VENV=... for another), which `scripts/install.sh --gpu --dev` makes. Ends with pytest's exit code.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

VENV=${VENV:-.venv}
die() { echo "gpu-check.sh: $*" >&2; exit 2; }
[ -x "$VENV/bin/python" ] || die "there is no $VENV: run scripts/install.sh --gpu --dev first"
"$VENV/bin/python" -c 'import sys, torch; sys.exit(not torch.cuda.is_available())' ||
    die "PyTorch sees no GPU here; $VENV/bin/python -m slime.doctor says what there is"

nvidia-smi --query-gpu=name,memory.total,driver_version --format=csv,noheader || true
"$VENV/bin/python" -m slime.doctor || true
export OMP_NUM_THREADS=1 TOKENIZERS_PARALLELISM=false HF_HUB_OFFLINE=1
exec "$VENV/bin/python" -m pytest -v -rs --durations=0 tests/gpu "$@"
