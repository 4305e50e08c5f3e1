#!/usr/bin/env bash
# From a fresh machine to a model that was trained by RL, on a CPU: Debian or Ubuntu, Python 3.11 or newer, 4 GB of disk, 4 GB of memory.
#
#   bash scripts/quickstart.sh
#
# Installs into .venv, makes a tiny Qwen3 checkpoint, teaches it by supervised fine-tuning to add two numbers (mostly by sloppy
# guesses), and then by GRPO to think first. What is done already is skipped. Further options go to the last step:
#
#   bash scripts/quickstart.sh --num-rollout 80
#
# RUNS=... names another directory than runs/ for what it makes; removing that directory starts afresh.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

VENV=${VENV:-.venv} RUNS=${RUNS:-runs}
TINY=$RUNS/tiny-col            # the checkpoint with random weights, prompts, demonstrations
COLD_START=$RUNS/tiny-col-sft  # the same after supervised fine-tuning

say() { printf '\n== %s\n' "$*"; }

say "1/4  install (once: two minutes, 2 GB)"
bash scripts/install.sh "$VENV"
PYTHON=$VENV/bin/python
export OMP_NUM_THREADS=1 TOKENIZERS_PARALLELISM=false HF_HUB_OFFLINE=1

say "2/4  a tiny Qwen3 checkpoint, prompts and demonstrations (a few seconds)"
if [ -f "$TINY/.done" ]; then
    echo "$TINY is there"
else
    rm -rf "$TINY"
    "$PYTHON" -m slime.tiny --task col --output "$TINY"
    touch "$TINY/.done"
fi

say "3/4  cold start by supervised fine-tuning (half a minute)"
if [ -f "$COLD_START/.done" ]; then
    echo "$COLD_START is there"
else
    rm -rf "$COLD_START"
    "$PYTHON" train.py --config configs/tiny-col-sft.yaml --hf-checkpoint "$TINY/model" --prompt-data "$TINY/sft.jsonl" \
        --run-dir "$COLD_START" --save-hf "$COLD_START/hf"
    touch "$COLD_START/.done"
fi

say "4/4  GRPO: reinforcement learning from right or wrong (a minute)"
exec "$PYTHON" train.py --config configs/tiny-col-grpo.yaml --hf-checkpoint "$COLD_START/hf" --prompt-data "$TINY/train.jsonl" \
    --eval-prompt-data heldout "$TINY/heldout.jsonl" "$@"
