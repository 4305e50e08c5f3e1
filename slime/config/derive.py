"""What unset options become: each default that depends on other options, in one place.

Invariant: deriving twice changes nothing, so that a saved configuration, in which all is derived, loads as itself.
"""

from __future__ import annotations

from typing import Any

ROLLOUT_FUNCTIONS = {
    "policy_loss": "slime.rollout.generate.generate_rollout",
    "custom_loss": "slime.rollout.generate.generate_rollout",
    "sft_loss": "slime.rollout.sft.generate_rollout",
}

REPLAY = "slime.rollout.replay.generate_rollout"


def derive(options: dict[str, Any], unsound: set[str] = frozenset()) -> dict[str, Any]:
    """All options with unset ones filled in. What would follow from an `unsound` option stays unset."""
    o = dict(options)

    def fill(name: str, value: Any) -> None:
        if o[name] is None:
            o[name] = value

    if not unsound & {"rollout_batch_size", "n_samples_per_prompt", "global_batch_size", "num_steps_per_rollout"}:
        samples = o["rollout_batch_size"] * o["n_samples_per_prompt"]
        fill("global_batch_size", max(1, samples // (o["num_steps_per_rollout"] or 1)))
        fill("num_steps_per_rollout", max(1, samples // o["global_batch_size"]))

    fill("log_probs_max_tokens_per_gpu", o["max_tokens_per_gpu"])
    if "rollout_batch_size" not in unsound:
        fill("over_sampling_batch_size", o["rollout_batch_size"])
    if o["dump_details"] is not None:
        fill("save_debug_rollout_data", f"{o['dump_details']}/rollout_data/{{rollout_id}}.jsonl")
        fill("save_debug_train_data", f"{o['dump_details']}/train_data/{{rollout_id}}-{{rank}}.npz")
    training_devices = o["actor_num_nodes"] * o["actor_num_gpus_per_node"]
    if o["load_debug_rollout_data"] is not None:
        o["debug_train_only"] = True
        o["rollout_function_path"] = REPLAY
    if o["debug_train_only"] or o["rollout_external_engine_addrs"]:
        o["rollout_num_gpus"] = 0  # of ours
    elif o["loss_type"] == "sft_loss":
        fill("rollout_num_gpus", 0)
    elif o["colocate"] or o["debug_rollout_only"]:
        fill("rollout_num_gpus", training_devices)
    if o["debug_rollout_only"]:
        o["colocate"] = False  # there is nobody to take turns with
    has_values = o["loss_type"] != "sft_loss" and not o["disable_compute_advantages_and_returns"]
    if o["advantage_estimator"] == "ppo" and has_values:
        if o["critic_num_nodes"] is not None or o["critic_num_gpus_per_node"] is not None:
            fill("critic_num_nodes", o["actor_num_nodes"])
            fill("critic_num_gpus_per_node", o["actor_num_gpus_per_node"])
        fill("critic_lr", o["lr"])
        if o["save"] is not None:
            fill("critic_save", f"{o['save']}/critic")
        if o["load"] is not None and not o["finetune"]:
            fill("critic_load", f"{o['load']}/critic")
    fill("offload_rollout", o["colocate"])

    fill("expert_tensor_parallel_size", o["tensor_model_parallel_size"])

    fill("eps_clip_high", o["eps_clip"])
    fill("rollout_function_path", ROLLOUT_FUNCTIONS[o["loss_type"]])
    fill("eval_function_path", o["rollout_function_path"])
    fill("eval_reward_key", o["reward_key"])
    for name in ("input_key", "label_key", "tool_key"):
        fill(f"eval_{name}", o[name])
    if o["rollout_max_context_len"] is not None and o["loss_type"] != "sft_loss":
        fill("rollout_max_prompt_len", max(o["rollout_max_context_len"] - 1, 1))  # one token is left to be generated
    for name in ("temperature", "top_p", "top_k", "max_response_len", "max_prompt_len", "max_context_len"):
        fill(f"eval_{name}", o[f"rollout_{name}"])
    if o["run_name"] is not None:
        fill("run_dir", f"runs/{o['run_name']}")
    return o
