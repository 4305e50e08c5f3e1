"""Whether the engine groups of a run fit: with the other options, with the devices, and with each other."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from slime.config import engine_rules
from slime.config.config import Config
from slime.config.engine_groups import EngineGroup, ServedModel, planned_engines, served_models
from slime.config.errors import ConfigError, Problem

READS = {
    "sglang_config", "prefill_num_servers", "rollout_external_engine_addrs", "rollout_num_gpus", "colocate",
    "rollout_num_gpus_per_engine", "num_gpus_per_node", "actor_num_nodes", "actor_num_gpus_per_node", "hf_checkpoint",
    "debug_rollout_only", "loss_type", "rm_model", "sglang_router_ip",
}  # fmt: skip


def look(config: Config, unsound: set[str]) -> list[Problem]:
    """All that is wrong with them; the file of --sglang-config is read for it."""
    if READS & unsound or not config.has_engines:
        return []
    if problems := list(_options(config)):
        return problems
    try:
        models = served_models(config)
    except ConfigError as error:
        return error.problems
    problems = [*_roles(config, models), *_reward_model(config, models), *engine_rules.look(config, models, unsound)]
    if config.sglang_config is not None:
        problems += [*_devices(config, models), *_weights(config, models)]
    return problems


def _options(c: Config) -> Iterator[Problem]:
    ways = {
        "--sglang-config": c.sglang_config is not None,
        "--prefill-num-servers": c.prefill_num_servers is not None,
        "--rollout-external-engine-addrs": bool(c.rollout_external_engine_addrs),
    }
    if len(given := [flag for flag, is_given in ways.items() if is_given]) > 1:
        yield Problem(", ".join(given), "each says which engines there are", "keep one of them")
    for address in c.rollout_external_engine_addrs:
        host, colon, port = address.rpartition(":")
        if not (host and colon and port.isdigit() and 0 < int(port) < 65536) or "/" in address:
            yield Problem("--rollout-external-engine-addrs", f"{address!r} is no address", "write it as host:port")
    if c.rollout_external_engine_addrs and c.colocate:
        what = "somebody else's engines cannot take turns with training on its devices"
        yield Problem("--rollout-external-engine-addrs", what, "leave out --colocate")
    if c.prefill_num_servers is not None and c.rollout_num_gpus:
        engines = c.rollout_num_gpus // c.rollout_num_gpus_per_engine
        if c.prefill_num_servers >= engines:
            what = f"{c.prefill_num_servers} of {engines} engines leave none to decode"
            yield Problem("--prefill-num-servers", what, "lower it, or give more --rollout-num-gpus")


def _roles(c: Config, models: tuple[ServedModel, ...]) -> Iterator[Problem]:
    for model in models:
        roles = {group.worker_type for group in model.groups} - {"placeholder"}
        where = _where(c, model)
        if not roles:
            yield Problem(where, "has no engines, only placeholders", "add a group with a worker_type of regular")
        if model.is_disaggregated and not {"prefill", "decode"} <= roles:
            lacking = ({"prefill", "decode"} - roles).pop()
            yield Problem(where, f"has no {lacking} engines", "prefill and decode need each other")
        if model.is_disaggregated and "regular" in roles:
            what = "a router that joins prefill and decode engines sends regular ones nothing"
            yield Problem(where, what, "give regular engines a model of their own")
    if c.sglang_router_ip is not None and (len(models) > 1 or models[0].is_disaggregated):
        what = "several models, and prefill and decode engines, need routers that this run starts"
        yield Problem("--sglang-router-ip", what, "leave it out")


def _devices(c: Config, models: tuple[ServedModel, ...]) -> Iterator[Problem]:
    total = sum(group.num_gpus for model in models for group in model.groups)
    if c.rollout_num_gpus and total != c.rollout_num_gpus:
        yield Problem(
            f"{c.sglang_config}: sglang",
            f"the groups have {total} devices, --rollout-num-gpus is {c.rollout_num_gpus}",
            f"give --rollout-num-gpus {total}, or a placeholder group for devices that are to stay free",
        )
    sound = True
    for model in models:
        for group in model.groups:
            for what, fix in _unfit(group, c.num_gpus_per_node):
                sound = False
                yield Problem(_where(c, model), what, fix)
    if not (sound and c.colocate):
        return
    training, per_node = c.actor_num_nodes * c.actor_num_gpus_per_node, c.actor_num_gpus_per_node
    for engine in planned_engines(models):
        first, last = engine.first_device, engine.first_device + engine.num_devices - 1
        if first < training and (last >= training or (first % per_node and first // per_node != last // per_node)):
            yield Problem(
                _where(c, engine.model),
                f"an engine would have the devices {first} to {last} of the groups, of which training has"
                f" {training}, {per_node} a node: it would straddle them",
                "put the groups in an order, and give them sizes, by which each engine is on one side",
            )


def _unfit(group: EngineGroup, per_node: int) -> Iterator[tuple[str, str]]:
    size = group.num_gpus_per_engine
    if group.worker_type != "placeholder" and group.num_gpus % size:
        yield f"engines of {size} devices do not divide a group of {group.num_gpus}", "change one of the numbers"
    if max(size, per_node) % min(size, per_node):
        yield (
            f"engines of {size} devices do not fit nodes of {per_node} (--num-gpus-per-node) evenly",
            "an engine is a part of a node that divides it, or whole nodes",
        )


def _weights(c: Config, models: tuple[ServedModel, ...]) -> Iterator[Problem]:
    if not c.debug_rollout_only and not any(model.update_weights for model in models):
        yield Problem(
            f"{c.sglang_config}: sglang",
            "no model gets the weights of training, so none could make the rollouts",
            "name the policy: leave its model_path out, or give it `update_weights: true`",
        )
    for model in models:
        if not os.path.isfile(Path(model.path) / "config.json"):
            what = f"model_path {model.path} is no directory with a config.json"
            yield Problem(_where(c, model), what, "download the model, or correct the path")


def _reward_model(c: Config, models: tuple[ServedModel, ...]) -> Iterator[Problem]:
    names = [model.name for model in models]
    if c.rm_model is not None and c.rm_model not in names:
        fix = "add a model to the file of --sglang-config"
        yield Problem("--rm-model", f"{c.rm_model!r} is none of the models that are served: {', '.join(names)}", fix)


def _where(c: Config, model: ServedModel) -> str:
    if c.sglang_config is not None:
        return f"{c.sglang_config}: model {model.name}"
    return "--rollout-num-gpus" if c.prefill_num_servers is None else "--prefill-num-servers"
