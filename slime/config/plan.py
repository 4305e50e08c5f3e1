"""The plan of a run in words: what runs where, and how prompts become optimizer steps. What --check prints."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Iterator

from slime.config import checkpoint_dir, checkpoint_files
from slime.config.architecture import Architecture
from slime.config.config import Config
from slime.config.engine_groups import ServedModel, planned_engines, served_models
from slime.config.remarks import remarks

WIDTH = 110
LABEL_WIDTH = 10


def describe(config: Config, model: Architecture | None, context: Iterable[str] = ()) -> str:
    """`model` is None where there is no config.json to be read; `context` is what is said of that of the engines.
    Expects a configuration without problems."""
    parts = (_model, _training, _critic, _engines, _weights, _rollout, _batches, _loss, _run, _eval)
    texts = {part.__name__.removeprefix("_").capitalize(): part(config, model) for part in parts}
    texts |= {"Context": context, "Remarks": remarks(config, model, data_parallel_size(config))}
    lines: list[str] = []
    for label, of_part in texts.items():
        for text in of_part:
            lines += textwrap.wrap(
                text,
                WIDTH,
                initial_indent=label.ljust(LABEL_WIDTH),
                subsequent_indent=" " * (LABEL_WIDTH + 2),
                break_long_words=False,
                break_on_hyphens=False,
            )
            label = ""
    return "\n".join(lines)


def data_parallel_size(c: Config) -> int:
    """Ranks / (TP x PP x CP)."""
    model_parallel = c.tensor_model_parallel_size * c.pipeline_model_parallel_size * c.context_parallel_size
    return c.actor_num_nodes * c.actor_num_gpus_per_node // model_parallel


def devices(c: Config) -> int:
    """How many devices a run takes in all."""
    ranks = 0 if c.debug_rollout_only else c.actor_num_nodes * c.actor_num_gpus_per_node
    engines = (c.rollout_num_gpus or 0) if c.has_engines else 0
    critics = c.critic_num_nodes * c.critic_num_gpus_per_node if c.critic_has_own_devices else 0
    return critics + (max(ranks, engines) if c.colocate else ranks + engines)


def _model(c: Config, model: Architecture | None) -> Iterator[str]:
    if model is None:
        return
    total, used = model.parameters
    heads = f"{model['num_attention_heads']} heads ({model['num_query_groups']} key-value)"
    text = f"{model.model_type}: {model['num_layers']} layers, hidden {model['hidden_size']}, {heads}"
    if "num_experts" in model:
        text += f", {model['num_experts']} experts of which a token visits {model['moe_router_topk']}"
    text += f"; {_amount(total)} parameters"
    yield text if used == total else f"{text}, {_amount(used)} of them at work for each token"
    yield f"from {c.hf_checkpoint}, trained in {'bfloat16 with float32 master weights' if c.bf16 else 'float32'}"


def _training(c: Config, model: Architecture | None) -> Iterator[str]:
    if c.debug_rollout_only:
        yield "none (--debug-rollout-only)"
        return
    tp, pp, cp = c.tensor_model_parallel_size, c.pipeline_model_parallel_size, c.context_parallel_size
    ep, etp = c.expert_model_parallel_size, c.expert_tensor_parallel_size
    per_node = c.actor_num_gpus_per_node
    world = c.actor_num_nodes * per_node
    text = f"{_n(world, 'rank')} = TP {tp} x PP {pp} x CP {cp} x DP {data_parallel_size(c)}"
    if ep > 1 or etp != tp:
        text += f"; for the experts = EP {ep} x ETP {etp} x PP {pp} x DP {world // (ep * etp * pp)}"
    yield text
    if c.actor_num_nodes > 1:
        yield _listed(f"node {node}: {_span(node * per_node, per_node)}" for node in range(c.actor_num_nodes))


def _critic(c: Config, model: Architecture | None) -> Iterator[str]:
    if not c.has_critic:
        return
    ranks = c.actor_num_nodes * c.actor_num_gpus_per_node
    where = "on the devices of the policy, in turns with it"
    if c.critic_has_own_devices:
        where = "on devices of their own, while the policy trains"
    start = checkpoint_dir.of_critic(c) or c.critic_load or c.hf_checkpoint
    yield f"{_n(ranks, 'rank')}, divided as the policy is, {where}; from {start}"
    first = f"; alone in the first {_n(c.num_critic_only_steps, 'rollout')}" if c.num_critic_only_steps else ""
    rates = f"learning rate {c.critic_lr:g}, values clipped at {c.value_clip:g}"
    yield f"{rates}; gamma {c.gamma:g}, lambda {c.lambd:g}{first}"


def _engines(c: Config, model: Architecture | None) -> Iterator[str]:
    if c.debug_train_only:
        yield "none (--debug-train-only)"
        return
    if c.loss_type == "sft_loss":
        yield "none: the responses are in the prompt files (--loss-type sft_loss)"
        return
    models, total = served_models(c), _n(devices(c), "device")
    engines = "; ".join(_served(model, named=len(models) > 1) for model in models)
    if c.rollout_external_engine_addrs:
        yield f"{engines}, on devices that are not ours; {total} in all"
    elif not c.colocate:
        yield f"{engines} on devices of their own; {total} in all"
    else:
        own, training = c.rollout_num_gpus or 0, c.actor_num_nodes * c.actor_num_gpus_per_node
        more = f" and on {_n(own - training, 'further device')}" if own > training else ""
        yield f"{engines} on the devices of training, in turns with it{more}; {total} in all"
        shared = [engine for engine in planned_engines(models) if engine.first_device < training]
        yield _listed(f"engine {engine.index}: {_span(engine.first_device, engine.num_devices)}" for engine in shared)
    for model in models:
        if not model.update_weights:
            yield f"{model.name} keeps the weights of {model.path}"
    router = f"the router at {c.sglang_router_ip}:{c.sglang_router_port}" if c.sglang_router_ip else "a router"
    each = " for each model" if len(models) > 1 else ""
    yield f"behind {router}{each}, which gives each at most {_n(c.sglang_server_concurrency, 'request')} at a time"


def _served(model: ServedModel, *, named: bool) -> str:
    groups = []
    for group in model.groups:
        size, role = group.num_gpus_per_engine, "" if group.worker_type == "regular" else f"{group.worker_type} "
        if group.worker_type == "placeholder":
            groups.append(f"{_n(group.num_gpus, 'device')} kept free")
        elif group.addresses:
            groups.append(f"{_n(group.num_engines, 'engine')} at {', '.join(group.addresses)}")
        else:
            groups.append(f"{_n(group.num_engines, f'{role}engine')} of {_n(size, 'device')} (TP {size})")
    return f"{model.name}: {' and '.join(groups)}" if named else " and ".join(groups)


def _weights(c: Config, model: Architecture | None) -> Iterator[str]:
    if not c.has_engines or c.debug_rollout_only:
        return
    by_wire = "by files on disk" if c.update_weight_transport == "disk" else "by broadcast"
    how = "through shared memory (of GPUs, by CUDA IPC)" if c.colocate else by_wire
    check = ", then compared by checksum" if c.check_weight_update_equal else ""
    often = "each rollout" if c.update_weights_interval == 1 else f"every {c.update_weights_interval:,} rollouts"
    yield f"to the engines after {often}, {how}, in buckets of {_bytes(c.update_weight_buffer_size)}{check}"


def _rollout(c: Config, model: Architecture | None) -> Iterator[str]:
    prompts, per_prompt = c.rollout_batch_size, c.n_samples_per_prompt
    yield f"{_n(prompts, 'prompt')} x {_n(per_prompt, 'sample')} = {_n(prompts * per_prompt, 'sample')}"
    source = c.data_source_path or ", ".join(c.prompt_data) or c.rollout_function_path
    yield f"prompts from {source}" + (", shuffled" if c.rollout_shuffle and c.data_source_path is None else "")
    if c.load_debug_rollout_data:
        yield f"recorded in {c.load_debug_rollout_data}"
    if not c.has_engines:
        return
    limits = {
        "prompt": c.rollout_max_prompt_len,
        "response": c.rollout_max_response_len,
        "both together": c.rollout_max_context_len,
    }
    tokens = ", ".join(f"{name} {limit:,}" for name, limit in limits.items() if limit is not None)
    yield f"temperature {c.rollout_temperature:g}" + (f"; at most so many tokens: {tokens}" if tokens else "")
    served = f" ({c.rm_model})" if c.rm_model else ""
    yield f"rewards by {c.custom_rm_path or c.rm_type or 'the functions that generate'}{served}"


def _batches(c: Config, model: Architecture | None) -> Iterator[str]:
    samples, batch, ranks = c.rollout_batch_size * c.n_samples_per_prompt, c.global_batch_size, data_parallel_size(c)
    yield f"{_n(samples, 'sample')} = {_n(c.num_steps_per_rollout, 'optimizer step')} x global batch of {batch}"
    if c.debug_rollout_only:
        return
    least, most = batch // ranks, -(-batch // ranks)
    share = _n(most, "sample") if least == most else f"{least} or {most} samples"
    if c.use_dynamic_batch_size:
        tokens = c.max_tokens_per_gpu * c.context_parallel_size
        product = f" ({c.max_tokens_per_gpu:,} x CP {c.context_parallel_size})" if c.context_parallel_size > 1 else ""
        pieces = f"packed into micro-batches of at most {tokens:,} tokens{product}"
    else:
        pieces = f"in {_n(-(-most // c.micro_batch_size), 'micro-batch', 'es')} of {_n(c.micro_batch_size, 'sample')}"
    measure = "operations" if c.balance_by_flops else "tokens"
    balance = f", balanced by {measure}" if c.balance_data or c.balance_by_flops else ""
    whose = "the one data-parallel rank" if ranks == 1 else f"each of {ranks:,} data-parallel ranks"
    yield f"in each step {share} for {whose}{balance}, {pieces}"


def _loss(c: Config, model: Architecture | None) -> Iterator[str]:
    mean = "mean over tokens" if c.calculate_per_token_loss else "mean over each sample's tokens, then over samples"
    if c.loss_type == "sft_loss":
        yield f"likelihood of the responses; {mean}"
    elif c.loss_type == "custom_loss":
        yield f"{c.custom_loss_function_path}; {mean}"
    else:
        clip = f"probability ratio clipped to 1 - {c.eps_clip:g} and 1 + {c.eps_clip_high:g}"
        kl = f"; + {c.kl_loss_coef:g} x KL ({c.kl_loss_type}) to {c.ref_load}" if c.use_kl_loss else ""
        if c.kl_coef:
            kl += f"; each token's reward less {c.kl_coef:g} x KL ({c.kl_loss_type}) to {c.ref_load}"
        sign = "-" if c.entropy_coef > 0 else "+"
        entropy = f"; {sign} {abs(c.entropy_coef):g} x entropy" if c.entropy_coef else ""
        yield f"{c.advantage_estimator}, {clip}; {mean}{kl}{entropy}{''.join(_off_policy(c))}"
    decay = "constant" if c.lr_decay_style == "constant" else f"{c.lr_decay_style} down to {c.min_lr:g}"
    warm_up = f", after {_n(c.lr_warmup_iters, 'step')} of warm-up" if c.lr_warmup_iters else ""
    norm = f"at most {c.clip_grad:g}" if c.clip_grad else "not limited"
    yield f"{c.optimizer}, learning rate {c.lr:g} {decay}{warm_up}; gradient norm {norm}"


def _off_policy(c: Config) -> Iterator[str]:
    if c.custom_tis_function_path is not None and c.use_tis:
        yield f"; weighed by {c.custom_tis_function_path}"
    elif c.use_tis:
        yield f"; weighed by importance, {c.tis_clip_low:g} to {c.tis_clip:g}"
    if c.use_mis:
        how = "masked outside of" if c.mis_mode == "mask" else "cut to"
        of = {"geometric": "sequence, its geometric mean"}.get(c.mis_level, c.mis_level)
        yield f"; weighed by importance of each {of}: {how} {c.mis_clip_low:g}..{c.mis_clip:g}"
    if c.use_opsm:
        yield "; without bad samples that have become unlikely"
    if c.use_opd:
        yield f"; + {c.opd_kl_coef:g} x what the teacher says ({c.opd_teacher_load or 'log-probs of the rollout'})"


def _run(c: Config, model: Architecture | None) -> Iterator[str]:
    first = checkpoint_files.first_rollout(c)
    if c.num_rollout is not None and first >= c.num_rollout:
        yield f"nothing is left to do: of {_n(c.num_rollout, 'rollout')}, {first:,} are done"
    elif c.num_rollout is not None:
        left = c.num_rollout - first
        samples = left * c.rollout_batch_size * c.n_samples_per_prompt
        of_all = f" of {c.num_rollout:,}, from number {first:,} on," if first else ""
        steps = _n(min(left, c.num_policy_rollouts) * c.num_steps_per_rollout, "optimizer step")
        yield f"{_n(left, 'rollout')}{of_all} = {steps} = {_n(samples, 'sample')}"
    elif c.num_epoch is not None:
        yield f"as many rollouts as {_n(c.num_epoch, 'pass', 'es')} over the prompts take"
    if c.async_depth and c.has_engines:
        yield "the next rollout is generated while one is trained on, by weights that are one update older"
    if c.max_weight_staleness is not None:
        how = {"wait": "training waits for what would be", "drop": "dropped is what is", "retry": "remade is what is"}
        yield (
            f"generation never stops; what is trained on is at most {_n(c.max_weight_staleness, 'weight update')} old,"
            f" {how[c.stale_group_policy]} older"
        )
    if c.load:
        found = checkpoint_dir.to_load(c)
        if found is None:
            yield f"starts anew, for {c.load} has no checkpoint yet"
        elif c.finetune or checkpoint_files.trained(found) is None:
            yield f"starts from the weights of {found}, and with nothing else of it"
        else:
            yield f"goes on from {found}"
    interval = f", and every {_n(c.save_interval, 'rollout')}" if c.save_interval else ""
    if c.save:
        yield f"checkpoints in {c.save} at the end{interval}" + (f"; {c.save_keep} are kept" if c.save_keep else "")
    if c.save_hf:
        yield f"exported to {c.save_hf} at the end{interval}"


def _eval(c: Config, model: Architecture | None) -> Iterator[str]:
    if c.eval_interval is None or not c.has_engines:
        return
    first = "" if c.skip_eval_before_train else "before the first rollout and "
    yield f"{first}every {_n(c.eval_interval, 'rollout')}, {_n(c.n_samples_per_eval_prompt, 'sample')} a prompt"
    sets = ", ".join(f"{name} ({path})" for name, path in c.eval.datasets.items())
    if c.eval_config:
        sets = f"{sets}, and those of {c.eval_config}" if sets else f"the sets of {c.eval_config}"
    yield f"on {sets or c.eval_function_path}"


def _n(number: int, noun: str, plural: str = "s") -> str:
    return f"{number:,} {noun}{'' if number == 1 else plural}"


def _span(first: int, count: int) -> str:
    return f"rank {first}" if count == 1 else f"ranks {first}-{first + count - 1}"


def _listed(parts: Iterable[str]) -> str:
    """All of a short list, else its beginning and end."""
    parts = list(parts)
    return ", ".join(parts if len(parts) <= 6 else [*parts[:3], "...", parts[-1]])


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
