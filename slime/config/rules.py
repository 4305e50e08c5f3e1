"""Rules between options: what is given must fit together.

Only options are looked at here, and only what they say: what a run lacks is the business of completeness.py, the files
that options name that of disk.py.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from slime.config import kernels
from slime.config.config import Config
from slime.config.critic import learners
from slime.config.errors import Problem

Rule = Callable[[Config], Iterator[Problem]]


class Rules:
    """Each rule names the options it reads, and is left out when one of those has a problem of its own: no problem is
    told that is only the consequence of another."""

    def __init__(self) -> None:
        self._rules: list[tuple[frozenset[str], Rule]] = []

    def reads(self, *options: str) -> Callable[[Rule], Rule]:
        def add(rule: Rule) -> Rule:
            self._rules.append((frozenset(options), rule))
            return rule

        return add

    def broken(self, config: Config, unsound: set[str]) -> list[Problem]:
        return [problem for options, rule in self._rules if not options & unsound for problem in rule(config)]


COHERENCE = Rules()
reads = COHERENCE.reads


@reads("rollout_batch_size", "n_samples_per_prompt", "global_batch_size", "num_steps_per_rollout")
def _batches_add_up(c: Config) -> Iterator[Problem]:
    samples = c.rollout_batch_size * c.n_samples_per_prompt
    if c.num_steps_per_rollout * c.global_batch_size != samples:
        steps = [n for n in range(1, samples + 1) if samples % n == 0]
        near = sorted(sorted(steps, key=lambda n: abs(n - c.num_steps_per_rollout))[:3])
        pairs = [f"--num-steps-per-rollout {n} --global-batch-size {samples // n}" for n in near]
        yield Problem(
            "--global-batch-size, --num-steps-per-rollout",
            f"{c.rollout_batch_size} prompts x {c.n_samples_per_prompt} samples = {samples} samples a rollout,"
            f" which is not {c.num_steps_per_rollout} steps x {c.global_batch_size}",
            f"e.g. {' or '.join(pairs)}",
        )


@reads("use_dynamic_batch_size", "max_tokens_per_gpu")
def _dynamic_batches_have_a_size(c: Config) -> Iterator[Problem]:
    if c.use_dynamic_batch_size and c.max_tokens_per_gpu is None:
        yield Problem("--use-dynamic-batch-size", "needs --max-tokens-per-gpu", "e.g. --max-tokens-per-gpu 8192")


@reads("use_dynamic_batch_size", "max_tokens_per_gpu", "log_probs_max_tokens_per_gpu", "use_routing_replay")
def _scoring_has_rows_of_its_own(c: Config) -> Iterator[Problem]:
    if c.log_probs_max_tokens_per_gpu == c.max_tokens_per_gpu:
        return
    option = "--log-probs-max-tokens-per-gpu"
    if not c.use_dynamic_batch_size:
        yield Problem(option, "micro-batches have a number of samples, not of tokens", "add --use-dynamic-batch-size")
    if c.use_routing_replay and not c.use_rollout_routing_replay:
        what = "training takes the experts of the pass that computes log-probs, micro-batch by micro-batch"
        yield Problem(f"{option}, --use-routing-replay", what, "leave one of them out")


@reads("save_interval", "save", "save_hf")
def _saving_has_a_place(c: Config) -> Iterator[Problem]:
    if c.save_interval is not None and c.save is None and c.save_hf is None:
        yield Problem("--save-interval", "needs a place to save to", "add --save DIR, or --save-hf 'out/{rollout_id}'")
    if c.save_interval is not None and c.save_hf is not None and "{rollout_id}" not in c.save_hf:
        yield Problem("--save-hf", f"{c.save_hf!r} is the same directory for every rollout", "put {rollout_id} into it")


@reads("save", "save_keep", "async_save", "no_save_optim")
def _checkpoints_have_a_place(c: Config) -> Iterator[Problem]:
    for option in ("save_keep", "async_save", "no_save_optim"):
        if getattr(c, option) and c.save is None:
            yield Problem(f"--{option.replace('_', '-')}", "is about the checkpoints of --save", "add --save DIR")


@reads("load", "ckpt_step", "allow_fresh_start", "no_load_optim", "no_load_rng", "finetune")
def _loading_has_a_source(c: Config) -> Iterator[Problem]:
    for option in ("ckpt_step", "allow_fresh_start", "no_load_optim", "no_load_rng", "finetune"):
        value = getattr(c, option)
        if value is not None and value is not False and c.load is None:
            yield Problem(f"--{option.replace('_', '-')}", "is about the checkpoint of --load", "add --load DIR")


TEMPLATES = {
    "save_hf": ("rollout_id",),
    "save_debug_rollout_data": ("rollout_id",),
    "load_debug_rollout_data": ("rollout_id",),
    "save_debug_train_data": ("rollout_id", "rank"),
}
"""Option -> the placeholders of the path that it gives."""


@reads(*TEMPLATES)
def _templates_have_known_placeholders(c: Config) -> Iterator[Problem]:
    for option, names in TEMPLATES.items():
        path, known = getattr(c, option) or "", " and ".join(f"{{{name}}}" for name in names)
        flag = f"--{option.replace('_', '-')}"
        try:
            path.format(**dict.fromkeys(names, 0))
        except (KeyError, IndexError, ValueError):
            yield Problem(flag, f"{path!r} has a placeholder other than {known}", f"only {known} is filled in")
        if path and option.startswith("save_debug") and (lacking := [n for n in names if f"{{{n}}}" not in path]):
            yield Problem(flag, f"{path!r} is the same file for every {lacking[0]}", f"put {{{lacking[0]}}} into it")


@reads("profile_target", "profile_step_start", "profile_step_end", "num_rollout")
def _something_is_traced(c: Config) -> Iterator[Problem]:
    if c.profile_target is None:
        return
    first, end = c.profile_step_start, c.profile_step_end
    if first >= end:
        what = f"{end} is not above --profile-step-start {first}"
        yield Problem("--profile-step-end", what, "it is the first rollout that is not traced")
    elif c.num_rollout is not None and first >= c.num_rollout:
        what = f"{first} is after the last of the {c.num_rollout} rollouts"
        yield Problem("--profile-step-start", what, "rollouts count from 0, e.g. --profile-step-start 1")


@reads("start_rollout_id", "num_rollout")
def _a_rollout_is_left(c: Config) -> Iterator[Problem]:
    first = c.start_rollout_id
    if first is not None and c.num_rollout is not None and first >= c.num_rollout:
        what = f"{first} is after the last of the {c.num_rollout} rollouts: there is nothing to do"
        fix = f"rollouts count from 0, and --num-rollout counts all of them: give one above {first}"
        yield Problem("--start-rollout-id", what, fix)


@reads("record_memory_history", "memory_snapshot_dir", "memory_snapshot_num_steps")
def _memory_is_recorded(c: Config) -> Iterator[Problem]:
    for option in ("memory_snapshot_dir", "memory_snapshot_num_steps"):
        if getattr(c, option) is not None and not c.record_memory_history:
            flag = f"--{option.replace('_', '-')}"
            yield Problem(flag, "is about a recording of memory", "add --record-memory-history")


@reads("debug_rollout_only", "loss_type", "load")
def _rollouts_alone_are_generated(c: Config) -> Iterator[Problem]:
    if not c.debug_rollout_only:
        return
    if c.loss_type == "sft_loss":
        yield Problem("--debug-rollout-only", "generates nothing with --loss-type sft_loss", "leave one out")
    if c.load is not None:
        what = "is for training; the engines of --debug-rollout-only have the weights of --hf-checkpoint"
        fix = "leave it out, or convert the checkpoint first: python -m slime.convert torch-dist-to-hf"
        yield Problem("--load", what, fix)


@reads("debug_train_only", "debug_rollout_only", "load_debug_rollout_data", "loss_type", "rollout_function_path")
def _debugging_leaves_something(c: Config) -> Iterator[Problem]:
    if c.debug_train_only and c.debug_rollout_only:
        yield Problem("--debug-train-only, --debug-rollout-only", "leave nothing to do", "leave one out")
    ours = c.rollout_function_path == "slime.rollout.generate.generate_rollout"
    if c.debug_train_only and ours and c.load_debug_rollout_data is None:
        fix = "record some with --save-debug-rollout-data and give --load-debug-rollout-data"
        yield Problem("--debug-train-only", "generates no rollouts to train on", fix)


@reads("pipeline_model_parallel_size")
def _virtual_stages_are_of_a_pipeline(c: Config) -> Iterator[Problem]:
    virtual = c.megatron.get("virtual_pipeline_model_parallel_size")
    if virtual is not None and c.pipeline_model_parallel_size == 1:
        what = f"{virtual} virtual stages need a pipeline of several ranks"
        yield Problem(
            "--virtual-pipeline-model-parallel-size", what, "add --pipeline-model-parallel-size, or leave it out"
        )


@reads("rollout_num_gpus")
def _engines_have_memory(c: Config) -> Iterator[Problem]:
    share = c.sglang.get("mem_fraction_static")
    if share is not None and not 0 < share < 1:
        what = f"{share:g} is not a share of the memory, above 0 and below 1"
        yield Problem("--sglang-mem-fraction-static", what, "e.g. --sglang-mem-fraction-static 0.7")


@reads("device", "megatron_config_path", "debug_rollout_only", "advantage_estimator")
def _a_cpu_has_no_kernels_of_gpus(c: Config) -> Iterator[Problem]:
    if c.device == "cpu":
        yield from kernels.lacking_to_run(c, on_gpu=False)


@reads("load_debug_rollout_data_subsample", "load_debug_rollout_data")
def _subsample_is_of_a_recording(c: Config) -> Iterator[Problem]:
    if c.load_debug_rollout_data_subsample is not None and c.load_debug_rollout_data is None:
        fix = "add --load-debug-rollout-data PATH"
        yield Problem("--load-debug-rollout-data-subsample", "is a share of a recording", fix)


@reads("prompt_data", "prompt_data_weights")
def _every_prompt_file_has_a_weight(c: Config) -> Iterator[Problem]:
    if c.prompt_data_weights and len(c.prompt_data_weights) != len(c.prompt_data):
        what = f"{len(c.prompt_data_weights)} weights for {len(c.prompt_data)} files of --prompt-data"
        yield Problem("--prompt-data-weights", what, "give one for each file, e.g. 3 1")


@reads("eval_interval", "eval_prompt_data", "eval_config", "eval_function_path", "rollout_function_path")
def _eval_has_data(c: Config) -> Iterator[Problem]:
    names = c.eval_prompt_data[::2]
    has_data = names or c.eval_config is not None
    if c.eval_interval is not None and not has_data and c.eval_function_path == c.rollout_function_path:
        yield Problem(
            "--eval-interval", "needs data to evaluate on", "add --eval-prompt-data NAME PATH, or --eval-config FILE"
        )
    if len(c.eval_prompt_data) % 2:
        yield Problem(
            "--eval-prompt-data",
            f"takes pairs of name and path, but {' '.join(c.eval_prompt_data)!r} has {len(c.eval_prompt_data)} words",
            "e.g. --eval-prompt-data held-out data/eval.jsonl",
        )
    for name in sorted({name for name in names if names.count(name) > 1}):
        yield Problem(
            "--eval-prompt-data", f"the name {name!r} is given twice", "metrics are told apart by it: choose another"
        )


@reads(
    "lr", "min_lr", "lr_decay_style", "critic_lr", "advantage_estimator", "loss_type", "debug_rollout_only",
    "megatron_config_path",
)  # fmt: skip
def _learning_rates_decay_downwards(c: Config) -> Iterator[Problem]:
    for flag, learner in zip(("--lr", "--critic-lr"), learners(c), strict=False):
        if learner.lr_decay_style != "constant" and learner.min_lr > learner.lr:
            yield Problem("--min-lr", f"{learner.min_lr} is above {flag} {learner.lr}", "the rate decays down to it")
            return  # --critic-lr is --lr unless it is given


@reads(
    "lr_decay_style", "lr_warmup_iters", "lr_decay_iters", "num_rollout", "num_steps_per_rollout", "rollout_batch_size",
    "n_samples_per_prompt", "global_batch_size", "advantage_estimator", "num_critic_only_steps",
)  # fmt: skip
def _learning_rate_can_decay(c: Config) -> Iterator[Problem]:
    if c.lr_decay_style == "constant":
        return
    if c.lr_decay_iters is None and c.num_rollout is None and c.num_epoch is not None:
        yield Problem("--lr-decay-style", f"{c.lr_decay_style} over how many steps?", "give --lr-decay-iters")
    steps = c.lr_decay_iters or (c.num_policy_rollouts or 0) * c.num_steps_per_rollout
    if 0 < steps <= c.lr_warmup_iters:
        whole = f"--lr-decay-iters {steps}" if c.lr_decay_iters else f"the {steps} optimizer steps of the run"
        fix = f"warm-up is part of it: a fifth would be --lr-warmup-iters {steps // 5}"
        yield Problem("--lr-warmup-iters", f"{c.lr_warmup_iters} leaves nothing of {whole}", fix)


_WITH_LABEL = {"exact_match", "math", "deepscaler", "dapo", "f1", "em"}
_BY_SERVED_MODEL = {"reward_model", "judge"}
_BY_SERVICE = {"remote_rm", *_BY_SERVED_MODEL}


@reads(
    "rm_type", "rm_url", "rm_model", "reward_key", "custom_rm_path", "group_rm", "label_key", "data_source_path",
    "custom_reward_post_process_path",
)  # fmt: skip
def _reward_can_be_given(c: Config) -> Iterator[Problem]:
    if c.group_rm and c.custom_rm_path is None:
        yield Problem("--group-rm", "needs --custom-rm-path: built-in graders look at one sample", "leave it out")
    if c.rm_type is None or c.custom_rm_path is not None:
        return
    grader = c.rm_type.removeprefix("boxed_")
    if grader in _WITH_LABEL and c.label_key is None and c.data_source_path is None:
        yield Problem("--rm-type", f"{grader} compares with a label", "name its key in the prompt file: --label-key")
    if grader in _BY_SERVICE and c.rm_url is None and c.rm_model is None:
        yield Problem("--rm-type", f"{grader} asks a service", "say where it is: --rm-url http://host:port")
    if c.rm_model is not None and (c.rm_url is not None or grader not in _BY_SERVED_MODEL):
        what = "is for --rm-type reward_model and judge, in place of --rm-url"
        yield Problem("--rm-model", what, "leave one out")
    if grader == "dapo" and c.reward_key is None and c.custom_reward_post_process_path is None:
        yield Problem(
            "--rm-type", "dapo gives a dict of score, acc and pred", "say what to train on: --reward-key score"
        )


@reads("rm_url", "http_proxy")
def _reward_service_has_an_address(c: Config) -> Iterator[Problem]:
    for flag, url in (("--rm-url", c.rm_url), ("--http-proxy", c.http_proxy)):
        if url is not None and not url.startswith(("http://", "https://")):
            yield Problem(flag, f"{url!r} is no address", "write it as http://host:port")
    if c.http_proxy is not None and c.rm_url is None:
        yield Problem("--http-proxy", "is for --rm-url, and no service is asked", "leave it out")


@reads("rollout_max_context_len", "rollout_max_response_len", "rollout_max_prompt_len")
def _lengths_fit(c: Config) -> Iterator[Problem]:
    for part in ("response", "prompt"):
        length = getattr(c, f"rollout_max_{part}_len")
        if length is not None and c.rollout_max_context_len is not None and length > c.rollout_max_context_len:
            yield Problem(
                f"--rollout-max-{part}-len",
                f"{length} tokens exceed --rollout-max-context-len {c.rollout_max_context_len}",
                "the context holds prompt and response",
            )


@reads("update_weight_transport", "colocate", "update_weight_disk_dir", "custom_update_weight_post_write_path")
def _weights_travel_by_disk(c: Config) -> Iterator[Problem]:
    by_disk = c.update_weight_transport == "disk" and not c.colocate
    for option in ("update_weight_disk_dir", "update_weight_disk_keep_files", "custom_update_weight_post_write_path"):
        if getattr(c, option) and not by_disk:
            what = "is for --update-weight-transport disk" + (
                ", and colocated halves share memory" if c.colocate else ""
            )
            yield Problem(f"--{option.replace('_', '-')}", what, "leave it out, or change the transport")


@reads("actor_num_gpus_per_node", "num_gpus_per_node", "colocate", "rollout_num_gpus_per_engine", "sglang_config")
def _nodes_have_these_devices(c: Config) -> Iterator[Problem]:
    training, engine = c.actor_num_gpus_per_node, c.rollout_num_gpus_per_engine
    if training > c.num_gpus_per_node:
        yield Problem(
            "--actor-num-gpus-per-node",
            f"{training} are more than the {c.num_gpus_per_node} devices of a node",
            f"lower it, or say that nodes have more: --num-gpus-per-node {training}",
        )
    if c.colocate and c.sglang_config is None and max(training, engine) % min(training, engine):
        yield Problem(
            "--rollout-num-gpus-per-engine",
            f"colocated engines of {engine} devices would straddle nodes of {training} training devices",
            "one of it and --actor-num-gpus-per-node must divide the other",
        )


@reads("rollout_num_gpus", "rollout_num_gpus_per_engine", "num_gpus_per_node", "sglang_config")
def _engines_fill_their_devices(c: Config) -> Iterator[Problem]:
    if c.sglang_config is not None:  # each group has its own sizes: see group_rules.py
        return
    size, node = c.rollout_num_gpus_per_engine, c.num_gpus_per_node
    if c.rollout_num_gpus and c.rollout_num_gpus % size:
        yield Problem(
            "--rollout-num-gpus-per-engine",
            f"{size} does not divide --rollout-num-gpus {c.rollout_num_gpus}",
            _divisors(c.rollout_num_gpus),
        )
    if max(size, node) % min(size, node):
        yield Problem(
            "--rollout-num-gpus-per-engine",
            f"engines of {size} devices do not fit nodes of {node} evenly",
            "an engine is a part of a node that divides it, or whole nodes",
        )


@reads(
    "actor_num_nodes", "actor_num_gpus_per_node", "tensor_model_parallel_size", "pipeline_model_parallel_size",
    "context_parallel_size", "expert_model_parallel_size", "expert_tensor_parallel_size", "sequence_parallel",
)  # fmt: skip
def _ranks_divide(c: Config) -> Iterator[Problem]:
    world = c.actor_num_nodes * c.actor_num_gpus_per_node
    tp, pp, cp = c.tensor_model_parallel_size, c.pipeline_model_parallel_size, c.context_parallel_size
    ep, etp = c.expert_model_parallel_size, c.expert_tensor_parallel_size
    where = "--actor-num-nodes x --actor-num-gpus-per-node"
    if world % (tp * pp * cp):
        yield Problem(
            where, f"{world} ranks are not a multiple of TP {tp} x PP {pp} x CP {cp} = {tp * pp * cp}", _divisors(world)
        )
    elif world % (ep * etp * pp):
        yield Problem(
            where,
            f"{world} ranks are not a multiple of EP {ep} x ETP {etp} x PP {pp} = {ep * etp * pp}",
            _divisors(world),
        )
    if ep > 1 and tp > 1 and not c.sequence_parallel:
        yield Problem(
            "--expert-model-parallel-size",
            "together with tensor parallelism needs sequence parallelism",
            "add --sequence-parallel",
        )


def _divisors(number: int) -> str:
    return f"{number} is divided by " + ", ".join(str(n) for n in range(1, number + 1) if number % n == 0)
