"""The plan of a run in words: what runs where, and how prompts become optimizer steps. What --check prints."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator

from slime.config.architecture import Architecture
from slime.config.config import Config

WIDTH = 110
_LABEL = 12


def describe(config: Config, model: Architecture | None) -> str:
    """`model` is None where config.json could not be read."""
    entries = [
        ("Model", _model(config, model)),
        ("Training", _training(config)),
        ("Engines", _engines(config)),
        ("Weights", _weights(config)),
        ("Rollout", _rollout(config)),
        ("Batches", _batches(config)),
        ("Loss", _loss(config)),
        ("Run", _run(config)),
        ("Eval", _eval(config)),
        ("Remarks", _remarks(config, model)),
    ]
    lines: list[str] = []
    for label, texts in entries:
        for n, text in enumerate(texts):
            start = f"{label if n == 0 else '':{_LABEL}}"
            lines += textwrap.wrap(
                text, WIDTH, initial_indent=start, subsequent_indent=" " * (_LABEL + 2), break_long_words=False
            )
    return "\n".join(lines)


def data_parallel_size(c: Config) -> int:
    return (
        c.actor_num_nodes
        * c.actor_num_gpus_per_node
        // (c.tensor_model_parallel_size * c.pipeline_model_parallel_size * c.context_parallel_size)
    )


def _model(c: Config, model: Architecture | None) -> Iterator[str]:
    if model is None:
        return
    total, used = model.parameters
    experts = (
        f", {model['num_experts']} experts of which a token visits {model['moe_router_topk']}"
        if "num_experts" in model
        else ""
    )
    size = f"{_amount(total)} parameters" + (f", {_amount(used)} of them for each token" if used != total else "")
    yield (
        f"{model.model_type}: {model['num_layers']} layers, hidden {model['hidden_size']}, {model['num_attention_heads']} heads"
        f" ({model['num_query_groups']} key-value){experts}; {size}"
    )
    yield f"from {c.hf_checkpoint}, in {'bfloat16 with float32 master weights' if c.bf16 else 'float32'}"


def _training(c: Config) -> Iterator[str]:
    if c.debug_rollout_only:
        yield "none (--debug-rollout-only)"
        return
    tp, pp, cp = c.tensor_model_parallel_size, c.pipeline_model_parallel_size, c.context_parallel_size
    ep, etp = c.expert_model_parallel_size, c.expert_tensor_parallel_size
    world, per_node = c.actor_num_nodes * c.actor_num_gpus_per_node, c.actor_num_gpus_per_node
    line = f"{_count(world, 'rank')} = TP {tp} x PP {pp} x CP {cp} x DP {data_parallel_size(c)}"
    if ep > 1 or etp != tp:
        line += f"; within the experts EP {ep} x ETP {etp} x PP {pp} x DP {world // (ep * etp * pp)}"
    yield line
    for node in range(c.actor_num_nodes):
        if c.actor_num_nodes > 4 and 2 <= node < c.actor_num_nodes - 1:
            if node == 2:
                yield "..."
            continue
        yield f"node {node}: {_span('rank', node * per_node, per_node)}"


def _engines(c: Config) -> Iterator[str]:
    if c.loss_type == "sft_loss":
        yield "none: responses come from the prompt files (--loss-type sft_loss)"
        return
    devices, size, per_node = c.rollout_num_gpus, c.rollout_num_gpus_per_engine, c.actor_num_gpus_per_node
    count = devices // size
    shape = f"{_count(count, 'engine')} of {_count(size, 'device')} (TP {size})"
    world = c.actor_num_nodes * per_node
    if not c.colocate or c.debug_rollout_only:
        yield f"{shape} on {_count(devices, 'device')} of their own, {_count(devices + (0 if c.debug_rollout_only else world), 'device')} in all"
    else:
        yield f"{shape} on the training devices, in turns with training" + (
            f", and {devices - world} more" if devices > world else ""
        )
        yield ", ".join(f"engine {n}: {_span('rank', n * size, size)}" for n in range(min(count, world // size, 4))) + (
            ", ..." if count > 4 else ""
        )
    where = f"the router at {c.sglang_router_ip}:{c.sglang_router_port}" if c.sglang_router_ip else "one router"
    yield f"behind {where}; at most {c.sglang_server_concurrency} requests an engine at a time"


def _weights(c: Config) -> Iterator[str]:
    if c.loss_type == "sft_loss" or c.debug_rollout_only:
        return
    how = "through shared memory" if c.colocate else "by broadcast"
    check = ", compared by checksum" if c.check_weight_update_equal else ""
    yield f"to the engines after each rollout, {how}, in buckets of {_bytes(c.update_weight_buffer_size)}{check}"


def _rollout(c: Config) -> Iterator[str]:
    samples = c.rollout_batch_size * c.n_samples_per_prompt
    yield f"{_count(c.rollout_batch_size, 'prompt')} x {_count(c.n_samples_per_prompt, 'sample')} = {_count(samples, 'sample')}"
    if c.loss_type == "policy_loss":
        limits = [f"{name} {value:,}" for name, value in [
            ("prompt", c.rollout_max_prompt_len), ("response", c.rollout_max_response_len), ("both together", c.rollout_max_context_len),
        ] if value is not None]  # fmt: skip
        yield f"temperature {c.rollout_temperature:g}" + (f"; tokens at most: {', '.join(limits)}" if limits else "")
        grader = c.custom_rm_path or c.rm_type
        yield f"rewards by {grader}" if grader else "rewards by the rollout's own functions"
    source = c.data_source_path or ", ".join(c.prompt_data)
    yield f"prompts from {source}" + (" (shuffled)" if c.rollout_shuffle and not c.data_source_path else "")


def _batches(c: Config) -> Iterator[str]:
    samples, steps, batch, ranks = (
        c.rollout_batch_size * c.n_samples_per_prompt, c.num_steps_per_rollout, c.global_batch_size, data_parallel_size(c),
    )  # fmt: skip
    yield f"{_count(samples, 'sample')} a rollout = {_count(steps, 'optimizer step')} x global batch {batch}"
    if c.debug_rollout_only:
        return
    least, most = batch // ranks, -(-batch // ranks)
    share = f"{_count(most, 'sample')}" if least == most else f"{least} or {most} samples"
    if c.use_dynamic_batch_size:
        tokens = c.max_tokens_per_gpu * c.context_parallel_size
        group = f" ({c.max_tokens_per_gpu:,} x CP {c.context_parallel_size})" if c.context_parallel_size > 1 else ""
        pieces = f"packed into micro-batches of at most {tokens:,} tokens{group}"
    else:
        pieces = f"in {_count(-(-most // c.micro_batch_size), 'micro-batch', 'es')} of at most {_count(c.micro_batch_size, 'sample')}"
    balance = ", ranks balanced by tokens" if c.balance_data else ""
    yield f"each step: {share} for each of {_count(ranks, 'data-parallel rank')}, {pieces}{balance}"


def _loss(c: Config) -> Iterator[str]:
    mean = "mean over tokens" if c.calculate_per_token_loss else "mean over each sample's tokens, then over samples"
    if c.loss_type == "sft_loss":
        yield f"likelihood of the responses, {mean}"
    else:
        parts = [f"{c.advantage_estimator}, ratio within 1 - {c.eps_clip:g} and 1 + {c.eps_clip_high:g}, {mean}"]
        if c.use_kl_loss:
            parts.append(f"{c.kl_loss_coef:g} x KL ({c.kl_loss_type}) to {c.ref_load}")
        if c.entropy_coef:
            parts.append(f"{c.entropy_coef:g} x entropy bonus")
        yield "; ".join(parts)
    decay = "constant" if c.lr_decay_style == "constant" else f"{c.lr_decay_style} down to {c.min_lr:g}"
    warm_up = f" after {_count(c.lr_warmup_iters, 'step')} of warm-up" if c.lr_warmup_iters else ""
    yield f"{c.optimizer}, learning rate {c.lr:g} {decay}{warm_up}, gradient norm at most {c.clip_grad:g}"


def _run(c: Config) -> Iterator[str]:
    if c.num_rollout is not None:
        samples = c.num_rollout * c.rollout_batch_size * c.n_samples_per_prompt
        yield f"{_count(c.num_rollout, 'rollout')} = {_count(c.num_rollout * c.num_steps_per_rollout, 'optimizer step')}, {_count(samples, 'sample')}"
    elif c.num_epoch is not None:
        yield f"as many rollouts as {_count(c.num_epoch, 'pass', 'es')} over the prompts take"
    if c.async_depth:
        yield "the next rollout is generated while one is trained on, by weights one update older"
    if c.save_hf:
        yield f"saved to {c.save_hf} at the end" + (
            f" and every {_count(c.save_interval, 'rollout')}" if c.save_interval else ""
        )


def _eval(c: Config) -> Iterator[str]:
    if c.eval_interval is None:
        return
    first = "" if c.skip_eval_before_train else "before the first rollout and "
    sets = ", ".join(f"{name} ({path})" for name, path in c.eval.datasets.items()) or c.eval_function_path
    yield f"{first}every {_count(c.eval_interval, 'rollout')}: {sets}; {_count(c.n_samples_per_eval_prompt, 'sample')} a prompt"


def _remarks(c: Config, model: Architecture | None) -> Iterator[str]:
    """What is allowed, and may still not be meant."""
    if c.kl_loss_coef and not c.use_kl_loss:
        yield "--kl-loss-coef has no effect without --use-kl-loss."
    if c.eval_prompt_data and c.eval_interval is None:
        yield "--eval-prompt-data is not used without --eval-interval."
    if c.max_tokens_per_gpu and not c.use_dynamic_batch_size:
        yield "--max-tokens-per-gpu has no effect without --use-dynamic-batch-size."
    if c.num_rollout and c.num_epoch:
        yield "--num-rollout decides; --num-epoch is not used."
    if c.global_batch_size % data_parallel_size(c) and not c.debug_rollout_only:
        yield (
            f"Global batch {c.global_batch_size} is not a multiple of {data_parallel_size(c)} data-parallel ranks: in each step some"
            " ranks have a sample less and wait."
        )
    longest = (c.rollout_max_prompt_len or 0) + (c.rollout_max_response_len or 0)
    if c.use_dynamic_batch_size and c.max_tokens_per_gpu * c.context_parallel_size < longest:
        yield f"A sample of the greatest length, {longest:,} tokens, exceeds a micro-batch and will be alone in one."
    if (
        model
        and (limit := model.get("max_position_embeddings"))
        and max(longest, c.rollout_max_context_len or 0) > limit
    ):
        yield f"The model was made for at most {limit:,} tokens (max_position_embeddings)."


def _count(number: int, noun: str, plural: str = "s") -> str:
    return f"{number:,} {noun}{'' if number == 1 else plural}"


def _span(noun: str, first: int, count: int) -> str:
    return f"{noun} {first}" if count == 1 else f"{noun}s {first}-{first + count - 1}"


def _amount(number: int) -> str:
    for size, letter in ((10**9, "B"), (10**6, "M"), (10**3, "k")):
        if number >= size:
            return f"{number / size:.3g} {letter}"
    return str(number)


def _bytes(number: int) -> str:
    for size, unit in ((1024**3, "GiB"), (1024**2, "MiB"), (1024, "KiB")):
        if number % size == 0:
            return f"{number // size} {unit}"
    return f"{number:,} bytes"
