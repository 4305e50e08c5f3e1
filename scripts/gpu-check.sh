#!/usr/bin/env bash
# What only a GPU can run, on one of them; with two, NCCL as well. Meant to take five minutes, which nobody has timed yet.
# Run it before the first job on a new machine or image, and read docs/gpu-checklist.md for what it does not cover.
#
#   bash scripts/gpu-check.sh                 everything
#   bash scripts/gpu-check.sh -k training     some: arguments go to pytest
#   bash scripts/gpu-check.sh --list          names what it would run, on any machine, and runs nothing
#
# Uses .venv (VENV=... for another), which `scripts/install.sh --gpu --dev` makes. Ends with pytest's exit code.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

VENV=${VENV:-.venv}
die() { echo "gpu-check.sh: $*" >&2; exit 2; }
[ -x "$VENV/bin/python" ] || die "there is no $VENV: run scripts/install.sh --gpu --dev first"
export OMP_NUM_THREADS=1 TOKENIZERS_PARALLELISM=false HF_HUB_OFFLINE=1
if [ "${1:-}" = --list ]; then
    shift
    exec "$VENV/bin/python" -m pytest --collect-only -q tests/gpu "$@"
fi
"$VENV/bin/python" -c 'import sys, torch; sys.exit(not torch.cuda.is_available())' ||
    die "PyTorch sees no GPU here; $VENV/bin/python -m slime.doctor says what there is"

nvidia-smi --query-gpu=name,memory.total,driver_version --format=csv,noheader || true
"$VENV/bin/python" -m slime.doctor || true
exec "$VENV/bin/python" -m pytest -v -rs --durations=0 tests/gpu "$@"
