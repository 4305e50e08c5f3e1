"""The names that launch scripts of this field pass: each is an option here, or is answered with a reason."""

from __future__ import annotations

import re

import pytest

from slime.config import catalogue
from slime.config.known_names import NO_EFFECT, NOT_BUILT, NOT_BUILT_VALUES, RENAMED
from slime.config.option import Option

REFERENCE = """
actor-num-nodes=1 actor-num-gpus-per-node=8 rollout-num-gpus=None rollout-num-gpus-per-engine=1 num-gpus-per-node=8
critic-num-nodes critic-num-gpus-per-node colocate offload offload-train=None offload-rollout=None
distributed-backend=nccl distributed-timeout-minutes=10 train-env-vars={} update-weight-mode[full|delta]
update-weight-transport[nccl|disk] release-train update-weight-disk-dir update-weight-disk-keep-files
update-weight-delta-encoding update-weight-delta-checksum update-weight-buffer-size=536870912
update-weight-local-checkpoint-dir custom-update-weight-post-write-path update-weights-interval=1 keep-old-actor
check-weight-update-equal

tensor-model-parallel-size pipeline-model-parallel-size context-parallel-size expert-model-parallel-size
expert-tensor-parallel-size sequence-parallel num-layers hidden-size num-attention-heads group-query-attention
num-query-groups swiglu normalization rotary-base vocab-size untie-embeddings-and-output-weights qk-layernorm
recompute-granularity recompute-method recompute-num-layers optimizer optimizer-cpu-offload
overlap-cpu-optimizer-d2h-h2d use-precision-aware-optimizer moe-token-dispatcher-type moe-enable-deepep
transformer-impl fp8-format lr lr-decay-style weight-decay adam-beta1 adam-beta2 clip-grad=1.0 seed=1234
custom-model-provider-path recompute-loss-function log-probs-chunk-size=-1 only-train-params-name-list
freeze-params-name-list megatron-config-path allgather-cp mtp-num-layers mtp-loss-scaling-factor=0.2
enable-mtp-training

hf-checkpoint model-name rollout-function-path rollout-temperature=1.0 rollout-top-p=1.0 rollout-top-k=-1
rollout-max-context-len rollout-max-prompt-len rollout-max-response-len rollout-skip-special-tokens rollout-stop
rollout-stop-token-ids rollout-shuffle rollout-seed=42 over-sampling-batch-size=None dynamic-sampling-filter-path
partial-rollout mask-offpolicy-in-partial-rollout custom-generate-function-path rollout-sample-hook-path
custom-rollout-log-function-path custom-eval-rollout-log-function-path buffer-filter-path
rollout-data-postprocess-path rollout-external-engine-addrs rollout-sample-filter-path
rollout-all-samples-process-path data-pad-size-multiplier=None loss-mask-type

use-fault-tolerance rollout-health-check-interval=30 rollout-health-check-timeout=30
rollout-health-check-first-wait=0

num-rollout num-epoch disable-rollout-global-dataset data-source-path prompt-data apply-chat-template
apply-chat-template-kwargs={} input-key=input label-key multimodal-keys metadata-key=metadata tool-key=tools
start-rollout-id rollout-batch-size n-samples-per-prompt=1 global-batch-size num-steps-per-rollout micro-batch-size=1
balance-data balance-by-flops use-dynamic-batch-size max-tokens-per-gpu log-probs-max-tokens-per-gpu

eval-function-path eval-interval eval-prompt-data eval-config skip-eval-before-train eval-input-key eval-label-key
eval-tool-key n-samples-per-eval-prompt=1 eval-temperature eval-top-p eval-top-k eval-max-response-len
eval-max-prompt-len eval-min-new-tokens eval-max-context-len

ref-load ref-ckpt-step load save save-interval async-save no-save-optim save-hf lr=1e-06 calculate-per-token-loss
num-critic-only-steps=0 critic-load critic-save critic-lr
advantage-estimator[grpo|gspo|cispo|reinforce_plus_plus|reinforce_plus_plus_baseline|ppo] eps-clip=0.2 eps-clip-high
eps-clip-c value-clip=0.2 kl-coef=0.0 loss-type[policy_loss|sft_loss|custom_loss] custom-loss-function-path
kl-loss-type[k1|k2|k3|low_var_kl] use-kl-loss kl-loss-coef=0.0 use-unbiased-kl ref-update-interval entropy-coef=0.0
gamma=1.0 lambd=1.0 normalize-advantages disable-grpo-std-normalization disable-rewards-normalization
use-rollout-entropy disable-compute-advantages-and-returns custom-advantage-function-path get-mismatch-metrics
reset-optimizer-states use-rollout-logprobs use-tis tis-clip=2.0 tis-clip-low=0.0 custom-tis-function-path
custom-pg-loss-reducer-function-path use-routing-replay use-rollout-routing-replay use-opsm opsm-delta=0.0001 use-opd
opd-type[sglang|megatron] opd-kl-coef=1.0 opd-teacher-load opd-teacher-ckpt-step

rm-type[deepscaler|dapo|math|f1|gpqa|ifbench|random|remote_rm] reward-key eval-reward-key group-rm rm-url
custom-rm-path custom-reward-post-process-path custom-convert-samples-to-train-data-path

use-wandb wandb-mode wandb-dir wandb-key wandb-host wandb-team wandb-group wandb-project wandb-run-id
disable-wandb-random-suffix wandb-always-use-train-step log-multi-turn log-passrate log-reward-category
log-correct-samples use-tensorboard tb-project-name tb-experiment-name

debug-rollout-only debug-train-only save-debug-rollout-data load-debug-rollout-data load-debug-rollout-data-subsample
save-debug-train-data dump-details memory-snapshot-dir memory-snapshot-num-steps
profile-target[train_overall|train_actor|train_log_probs] record-memory-history memory-recorder[torch|memray]
custom-config-path

custom-megatron-init-path custom-megatron-before-log-prob-hook-path custom-megatron-before-train-step-hook-path
http-proxy use-distributed-post

sglang-router-ip sglang-router-port sglang-router-request-timeout-secs=14400 router-policy
sglang-server-concurrency=512 prefill-num-servers sglang-config sglang-mem-fraction-static sglang-enable-dp-attention
sglang-ep-size sglang-moe-a2a-backend sglang-speculative-algorithm sglang-mem-fraction sglang-enable-ep-moe
sglang-enable-deepep-moe
"""
"""name, its default (=...), the choices it has at least ([a|b])."""
ENTRIES = {
    name: (default, choices.split("|") if choices else [])
    for name, default, choices in re.findall(r"([\w-]+)(?:=(\S+)|\[(\S+)\])?(?:\s|$)", REFERENCE)
}


def options() -> list[tuple[str, Option]]:
    found = [(name, catalogue.find(name.replace("-", "_"))) for name in ENTRIES]
    return [(name, option[0]) for name, option in found if option]


def test_every_name_is_an_option_or_is_answered_with_a_reason():
    answered = {*NOT_BUILT, *NO_EFFECT, *RENAMED}
    assert ENTRIES.keys() - {name for name, _ in options()} - answered == set()


@pytest.mark.parametrize("reason", [*NOT_BUILT.values(), *NOT_BUILT_VALUES["update_weight_mode"].values()])
def test_a_reason_says_why_and_names_what_to_do_instead(reason):
    why, instead = reason
    assert len(why) > 60 and (named := re.findall(r"--([a-z-]+)", instead))
    assert [name for name in named if catalogue.find(name.replace("-", "_")) is None] == []


def test_the_choices_of_scripts_are_there_or_are_answered_with_a_reason():
    for name, option in options():
        _, choices = ENTRIES[name]
        known = {*option.choices, *NOT_BUILT_VALUES.get(option.full_name, ())}
        assert set(choices) <= known, f"--{name}"


def test_defaults_are_those_that_scripts_count_on():
    defaults = {name: ENTRIES[name][0] for name, _ in options() if ENTRIES[name][0]}
    differing = {
        name: option.default
        for name, option in options()
        if name in defaults and defaults[name] not in (str(option.default), f"{option.default!r}".removesuffix(".0"))
    }
    assert differing == {}
