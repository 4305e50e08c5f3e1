#!/usr/bin/env bash
# Qwen3-30B-A3B (mixture of experts) by GRPO, colocated, on NUM_NODES nodes of GPUS_PER_NODE GPUs.
#
#   bash scripts/run-qwen3-30B-A3B.sh --check     check all options and print the plan, on any machine; needs
#       config.json of the model (MODEL_DIR) and a prompt file (PROMPT_DATA), no weights
#   NODE_RANK=0 MASTER_ADDR=10.0.0.1 bash scripts/run-qwen3-30B-A3B.sh     on the first node
#   NODE_RANK=1 MASTER_ADDR=10.0.0.1 bash scripts/run-qwen3-30B-A3B.sh     on the second, and so on
#
# The same command after a fault goes on from the last checkpoint in SAVE_DIR. `python -m slime.convert torch-dist-to-hf`
# makes a model in Hugging Face's format of one; --save-hf 'out/{rollout_id}' would with each, 61 GB a time.
#
# Further options are appended and win: bash scripts/run-qwen3-30B-A3B.sh --lr 2e-6
set -euo pipefail
if [[ ${1:-} == -h || ${1:-} == --help ]]; then
    sed -n '2,/^set /s/^# \{0,1\}//p' "${BASH_SOURCE[0]}"
    exit
fi
for name in MODEL_DIR PROMPT_DATA EVAL_DATA SAVE_DIR; do  # those of the caller start where the caller is
    [[ -z ${!name:-} || ${!name} == /* ]] || printf -v "$name" %s "$PWD/${!name}"
done
cd "$(dirname "${BASH_SOURCE[0]}")/.."

MODEL_DIR=${MODEL_DIR:-models/Qwen3-30B-A3B}     # Hugging Face directory: config.json, safetensors, tokenizer
PROMPT_DATA=${PROMPT_DATA:-data/train.jsonl}     # one {"prompt": [messages], "label": "34"} a line, graded as mathematics
EVAL_DATA=${EVAL_DATA:-}                         # the same, held out; empty: no eval
SAVE_DIR=${SAVE_DIR:-checkpoints/qwen3-30B-A3B}
NUM_NODES=${NUM_NODES:-2}
GPUS_PER_NODE=${GPUS_PER_NODE:-8}
NODE_RANK=${NODE_RANK:-0}                        # 0 starts Ray and submits the job; the others join it
MASTER_ADDR=${MASTER_ADDR:-}                     # address of node 0 that the other nodes can reach
RAY_PORT=${RAY_PORT:-6379}
DASHBOARD_PORT=${DASHBOARD_PORT:-8265}           # of node 0, on its loopback: where the job is submitted
PYTHON=${PYTHON:-$([ -x .venv/bin/python ] && echo .venv/bin/python || echo python3)}

die() { echo "run-qwen3-30B-A3B.sh: $*" >&2; exit 2; }
for name in NUM_NODES GPUS_PER_NODE NODE_RANK RAY_PORT DASHBOARD_PORT; do
    [[ ${!name} =~ ^[0-9]+$ ]] || die "$name is '${!name}', not a number"
    printf -v "$name" %d "$((10#${!name}))"  # bash takes 08 for octal
done
((NUM_NODES >= 1 && GPUS_PER_NODE >= 1)) || die "NUM_NODES and GPUS_PER_NODE must be at least 1"
((NODE_RANK < NUM_NODES)) || die "NODE_RANK is $NODE_RANK, but nodes are numbered 0 to $((NUM_NODES - 1))"
command -v "$PYTHON" >/dev/null || die "there is no $PYTHON; activate the environment or set PYTHON"
PATH=$(cd "$(dirname "$(command -v "$PYTHON")")" && pwd):$PATH  # where its ray is, too

# What config.json says as well; compared with it, so that a wrong model directory is noticed.
MODEL_ARGS=(
    --num-layers 48
    --hidden-size 2048
    --ffn-hidden-size 6144
    --num-attention-heads 32
    --group-query-attention
    --num-query-groups 4
    --kv-channels 128
    --qk-layernorm
    --normalization RMSNorm
    --norm-epsilon 1e-6
    --swiglu
    --disable-bias-linear
    --use-rotary-position-embeddings
    --rotary-base 1000000
    --vocab-size 151936
    --untie-embeddings-and-output-weights
    --num-experts 128
    --moe-layer-freq '[1]*48'
    --moe-ffn-hidden-size 768
    --moe-router-topk 8
)

CKPT_ARGS=(
    --hf-checkpoint "$MODEL_DIR"
    --ref-load "$MODEL_DIR"
    --save "$SAVE_DIR"
    --load "$SAVE_DIR"                           # while it is empty, --ref-load is what the run starts from
    --save-interval 20
    --save-keep 2
)

ROLLOUT_ARGS=(
    --prompt-data "$PROMPT_DATA"
    --input-key prompt
    --label-key label
    --apply-chat-template
    --rollout-shuffle
    --rm-type deepscaler
    --num-rollout 3000
    --rollout-batch-size 32
    --n-samples-per-prompt 8
    --rollout-max-response-len 8192
    --rollout-temperature 1
    --global-batch-size 256
)

EVAL_ARGS=()
if [[ -n $EVAL_DATA ]]; then
    EVAL_ARGS=(
        --eval-interval 20
        --eval-prompt-data held-out "$EVAL_DATA"
        --n-samples-per-eval-prompt 4
        --eval-max-response-len 16384
    )
fi

GRPO_ARGS=(
    --advantage-estimator grpo
    --use-kl-loss
    --kl-loss-coef 0.001
    --kl-loss-type low_var_kl
    --entropy-coef 0
    --eps-clip 0.2
    --eps-clip-high 0.28
)

OPTIMIZER_ARGS=(
    --optimizer adam
    --lr 1e-6
    --lr-decay-style constant
    --weight-decay 0.1
    --adam-beta1 0.9
    --adam-beta2 0.98
    --optimizer-cpu-offload
    --overlap-cpu-optimizer-d2h-h2d
    --use-precision-aware-optimizer
)

PERF_ARGS=(
    --tensor-model-parallel-size 4
    --sequence-parallel
    --pipeline-model-parallel-size 1
    --context-parallel-size 1
    --expert-model-parallel-size 8
    --expert-tensor-parallel-size 1
    --moe-token-dispatcher-type alltoall
    --moe-grouped-gemm
    --recompute-granularity full
    --recompute-method uniform
    --recompute-num-layers 1
    --use-dynamic-batch-size
    --max-tokens-per-gpu 20480
    --balance-data
    --attention-backend flash
    --accumulate-allreduce-grads-in-fp32
)

SGLANG_ARGS=(
    --rollout-num-gpus-per-engine 8
    --sglang-ep-size 8
    --sglang-mem-fraction-static 0.7
    --sglang-server-concurrency 512
)

MISC_ARGS=(
    --actor-num-nodes "$NUM_NODES"
    --actor-num-gpus-per-node "$GPUS_PER_NODE"
    --num-gpus-per-node "$GPUS_PER_NODE"
    --colocate
    --device cuda
    --use-tensorboard
)

TRAIN=(
    "${MODEL_ARGS[@]}" "${CKPT_ARGS[@]}" "${ROLLOUT_ARGS[@]}" "${EVAL_ARGS[@]}" "${GRPO_ARGS[@]}"
    "${OPTIMIZER_ARGS[@]}" "${PERF_ARGS[@]}" "${SGLANG_ARGS[@]}" "${MISC_ARGS[@]}"
)

if [[ ${1:-} == --check ]]; then
    exec "$PYTHON" train.py --check "${TRAIN[@]}" "${@:2}"
fi

[[ -d $MODEL_DIR ]] || die "there is no directory MODEL_DIR=$MODEL_DIR"
if [[ -z $MASTER_ADDR ]]; then
    ((NUM_NODES == 1)) || die "set MASTER_ADDR to the address of node 0"
    MASTER_ADDR=127.0.0.1
fi
if ((NODE_RANK == 0)); then
    "$PYTHON" train.py --check "${TRAIN[@]}" "$@"  # a mistake is told before anything starts
fi
# Ray asks everyone who connects for a token: the same file on all nodes, readable by its owner only.
export RAY_AUTH_MODE=token RAY_AUTH_TOKEN_PATH=${RAY_AUTH_TOKEN_PATH:-$HOME/.ray/auth_token}
if [[ ! -s $RAY_AUTH_TOKEN_PATH ]]; then
    ((NUM_NODES == 1)) || die "there is no $RAY_AUTH_TOKEN_PATH: write a random text to it, the same on all nodes"
    mkdir -p "$(dirname "$RAY_AUTH_TOKEN_PATH")"
    (umask 077 && "$PYTHON" -c 'import secrets; print(secrets.token_hex(32), end="")' >"$RAY_AUTH_TOKEN_PATH")
fi

if ((NODE_RANK > 0)); then
    exec ray start --address "$MASTER_ADDR:$RAY_PORT" --num-gpus "$GPUS_PER_NODE" --block
fi

# In the background and blocking, so that what was started here, and nothing else, ends with this script.
HEAD_ARGS=(--node-ip-address "$MASTER_ADDR" --port "$RAY_PORT" --dashboard-port "$DASHBOARD_PORT")
ray start --head "${HEAD_ARGS[@]}" --num-gpus "$GPUS_PER_NODE" --disable-usage-stats --block &
head_pid=$!
trap 'kill "$head_pid" 2>/dev/null; wait "$head_pid" || true' EXIT
DASHBOARD=http://127.0.0.1:$DASHBOARD_PORT
deadline=$((SECONDS + 120))
until answer=$(ray job list --address "$DASHBOARD" 2>&1); do
    kill -0 "$head_pid" 2>/dev/null || die "Ray did not start; its own message is above"
    ((SECONDS < deadline)) || die "Ray's job server at $DASHBOARD does not answer (it needs ray[default]): ${answer##*$'\n'}"
    sleep 1
done

RUNTIME_ENV='{"env_vars": {"PYTHONUNBUFFERED": "1", "CUDA_DEVICE_MAX_CONNECTIONS": "1"}}'
ray job submit --address "$DASHBOARD" --runtime-env-json "$RUNTIME_ENV" -- "$PYTHON" train.py "${TRAIN[@]}" "$@"
