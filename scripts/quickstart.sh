#!/usr/bin/env bash
# From a fresh machine to a model trained by reinforcement learning, on a CPU. Needs Debian or Ubuntu, Python 3.11 to
# 3.13, 4 GB of disk, no GPU.
#
#   bash scripts/quickstart.sh
#
# Installs into .venv, makes a tiny Qwen3 checkpoint, teaches it by supervised fine-tuning to add two numbers (mostly by
# sloppy guesses), and then by GRPO to think first. What is done already is skipped; `rm -r build/tiny` starts afresh.
# Further options go to the last step:
#
#   bash scripts/quickstart.sh --num-rollout 80
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

VENV=${VENV:-.venv}
TINY=build/tiny/col  # where configs/tiny-*.yaml look

# Runs a command so that Ctrl+C and SIGTERM reach it, and waits until it has ended: bash by itself would end at SIGTERM
# and leave it behind.
run() {
    local child status=0
    set -m # its own process group, or it would ignore Ctrl+C
    "$@" &
    child=$!
    set +m
    trap 'kill -INT $child' INT
    trap 'kill -TERM $child' TERM
    wait $child || status=$?
    while kill -0 $child 2>/dev/null; do # a signal ended the wait
        wait $child || status=$?
    done
    trap - INT TERM
    return $status
}

say() { printf '\n== %s\n' "$*"; }

say "1/4  install (once; one to four minutes, 2 GB)"
run bash scripts/install.sh "$VENV"
PYTHON=$VENV/bin/python
export OMP_NUM_THREADS=1 TOKENIZERS_PARALLELISM=false HF_HUB_OFFLINE=1

say "2/4  a tiny Qwen3 checkpoint with random weights, prompts, demonstrations (some seconds)"
if [ -d "$TINY" ]; then
    echo "$TINY is there"
else
    run "$PYTHON" -m slime.tiny --task col --output "$TINY"
fi

say "3/4  cold start by supervised fine-tuning (a minute)"
if [ -f "$TINY/cold-start/config.json" ]; then
    echo "$TINY/cold-start is there"
else
    run "$PYTHON" train.py --config configs/tiny-sft.yaml
fi

say "4/4  reinforcement learning by GRPO (a minute)"
exec "$PYTHON" train.py --config configs/tiny-grpo.yaml --config configs/tiny-ahead.yaml "$@"
