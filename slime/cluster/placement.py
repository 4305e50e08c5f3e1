"""Placement: which rank and which engine sits on which device of which node.

`plan` is arithmetic on numbers of devices; `place` reserves what a plan asks for and finds out where it is.

Invariants:
- A bundle is what must share a node: the training devices of one node, the critic's of one node where it has its own,
  or the devices of one engine (of each of its nodes, if it spans several). Ray never splits a bundle.
- The placement group holds every device; actors ask Ray for none, and are told theirs by CUDA_VISIBLE_DEVICES. Nobody
  else decides.
- Training ranks are ordered by node, so that neighbouring ranks, and with them tensor-parallel groups, share a node.
- Colocated engines sit on the training devices in rank order. Decoupled, the two halves have no device in common.

A device is a GPU where there are any, and a CPU slot (one process's worth) elsewhere.
"""

from __future__ import annotations

import ipaddress
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import ray
from ray.util.placement_group import PlacementGroup, placement_group, placement_group_table, remove_placement_group
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from slime.cluster.wait import wait
from slime.config.engine_groups import EngineGroup, served_models

if TYPE_CHECKING:
    from slime.cluster.session import Session
    from slime.config import Config


class PlacementError(ValueError):
    """More devices are asked for than there are, or engines do not fit on nodes. The message says what to change."""


@dataclass(frozen=True)
class Seat:
    """The `index`-th device of a bundle."""

    bundle: int
    index: int


@dataclass(frozen=True)
class Plan:
    """What a run asks for: the devices of each bundle, the seat of each training rank, the seats of each engine.

    Training's bundles come first, then those of the critic alone, each of one size, then those of the engines alone. A
    critic that shares the devices of training has the seats of its ranks.
    """

    bundles: tuple[int, ...]
    train: tuple[Seat, ...]
    engines: tuple[tuple[Seat, ...], ...]
    critic: tuple[Seat, ...] = ()

    @property
    def devices(self) -> int:
        return sum(self.bundles)

    def __str__(self) -> str:
        """For people: "8 devices (4 to train, 4 for 4 engines)"."""
        rollout = {seat for seats in self.engines for seat in seats}
        shared = rollout & set(self.train)
        engines = f"{len(self.engines)} engine{'s' * (len(self.engines) != 1)}"
        parts = [f"{len(self.train)} to train"] if self.train else []
        if self.critic:
            alone = f"{len(self.critic)} for a critic"
            parts.append("a critic on them in turns" if self.critic == self.train else alone)
        if shared:
            parts.append(f"{engines} on {len(shared)} of them in turns")
        if rollout - shared:
            parts.append(f"{len(rollout - shared)} {'more for the engines' if shared else 'for ' + engines}")
        if free := self.devices - len(rollout.union(self.train, self.critic)):
            parts.append(f"{free} kept free")
        return f"{self.devices} device{'s' * (self.devices != 1)} ({', '.join(parts)})"


def plan(
    train_nodes: int,
    train_per_node: int,
    engines: Sequence[EngineGroup],
    per_node: int,
    colocate: bool,
    critic: tuple[int, int] | None = None,
) -> Plan:
    """The plan for `train_nodes` x `train_per_node` ranks and these groups of engines; a group that is a placeholder
    has devices that nobody sits on.

    `per_node` is the size of a node: an engine larger than it spans several whole nodes. `critic` is (nodes, devices on
    each) of a critic's own, (0, 0) for one that shares those of training. Raises PlacementError.
    """
    bundles = [train_per_node] * train_nodes
    train = [Seat(bundle, index) for bundle, size in enumerate(bundles) for index in range(size)]
    critics = list(train) if critic == (0, 0) else []
    for _ in range(critic[0] if critic else 0):
        critics += [Seat(len(bundles), index) for index in range(critic[1])]
        bundles.append(critic[1])
    shared = list(train) if colocate else []
    seats: list[tuple[Seat, ...]] = []
    for group in engines:
        free = group.worker_type == "placeholder"
        size = 1 if free else group.num_gpus_per_engine
        if group.num_gpus % size:
            raise PlacementError(f"engines of {size} devices do not divide a group of {group.num_gpus}")
        for _ in range(group.num_gpus // size):
            engine, shared = shared[:size], shared[size:]
            if not engine:
                pieces = _pieces(size, per_node)
                engine = [Seat(len(bundles) + i, index) for i, piece in enumerate(pieces) for index in range(piece)]
                bundles += pieces
            elif len(engine) < size:
                raise PlacementError(
                    f"a colocated engine of {size} devices would have only {len(engine)} of its devices among "
                    f"the {len(train)} that train: make these a multiple of --rollout-num-gpus-per-engine"
                )
            elif engine[0].index and engine[0].bundle != engine[-1].bundle:
                raise PlacementError(
                    f"a colocated engine of {size} devices straddles nodes of {train_per_node} training devices: one"
                    " of --rollout-num-gpus-per-engine and --actor-num-gpus-per-node must divide the other"
                )
            if not free:
                seats.append(tuple(engine))
    return Plan(tuple(bundles), tuple(train), tuple(seats), tuple(critics))


def _pieces(size: int, per_node: int) -> list[int]:
    """The devices of an engine of its own on each of its nodes."""
    if size > per_node and size % per_node:
        raise PlacementError(
            f"an engine of {size} devices spans nodes of {per_node} (--num-gpus-per-node): it takes whole ones"
        )
    piece = min(size, per_node)
    return [piece] * (size // piece)


def plan_for(config: Config) -> Plan:
    """The plan that a configuration asks for. Supervised fine-tuning has no engines. Raises PlacementError."""
    critic = None
    if config.has_critic:
        own = config.critic_has_own_devices
        critic = (config.critic_num_nodes, config.critic_num_gpus_per_node) if own else (0, 0)
    return plan(
        train_nodes=0 if config.debug_rollout_only else config.actor_num_nodes,
        train_per_node=config.actor_num_gpus_per_node,
        engines=[group for model in served_models(config) for group in model.groups],
        per_node=config.num_gpus_per_node,
        colocate=config.colocate,
        critic=critic,
    )


@dataclass(frozen=True)
class Place:
    """One device that is ours.

    `device` is its name for CUDA_VISIBLE_DEVICES, None for a CPU slot; `host` is an IP address.
    """

    bundle: int
    node: str
    host: str
    device: str | None


@dataclass(frozen=True)
class Placement:
    """A plan's seats, taken: the place of each training rank, the places of each engine (by tensor-parallel rank), and
    the place of each of the critic's ranks."""

    train: tuple[Place, ...]
    engines: tuple[tuple[Place, ...], ...]
    critic: tuple[Place, ...]
    group: PlacementGroup

    def options(self, places: Sequence[Place]) -> dict[str, Any]:
        """`Actor.options(**...)` for an actor on the first of `places` that sees all of them which are on its node."""
        here = [place for place in places if place.node == places[0].node]
        options: dict[str, Any] = {
            "num_cpus": 0,
            "num_gpus": 0,
            "scheduling_strategy": PlacementGroupSchedulingStrategy(
                self.group, placement_group_bundle_index=places[0].bundle, placement_group_capture_child_tasks=False
            ),
        }
        if here[0].device is not None:
            visible = ",".join(place.device for place in here if place.device is not None)
            options["runtime_env"] = {"env_vars": {"CUDA_VISIBLE_DEVICES": visible}}
        return options

    def release(self) -> None:
        """Gives the devices back. The end of the session does so as well."""
        if not self.group.is_empty:
            remove_placement_group(self.group)


def place(plan: Plan, session: Session, timeout: float = 60.0) -> Placement:
    """Reserves the devices of `plan`, within `timeout` seconds. Raises PlacementError when they cannot be had.

    A cluster that was joined may still be growing, so there the whole time is waited before giving up.
    """
    deadline = time.monotonic() + timeout
    while (lack := _lack(plan, session.resource)) and session.joined and time.monotonic() < deadline:
        time.sleep(0.5)
    if lack:
        raise PlacementError(lack)
    if not plan.bundles:  # engines elsewhere, and no training
        return Placement((), (), (), PlacementGroup.empty())
    group = placement_group([{session.resource: size} for size in plan.bundles], strategy="PACK")
    if not group.wait(max(1.0, deadline - time.monotonic())):
        free = ray.available_resources().get(session.resource, 0)
        remove_placement_group(group)
        raise PlacementError(
            f"needs {plan}; the cluster has them, but only {free:g} {session.resource}s are free after {timeout:g} s: "
            "another job holds the rest, or the free ones are scattered over too many nodes"
        )
    bundles = _bundles(plan, group, session.resource)
    training = len({seat.bundle for seat in plan.train})
    critics = len({seat.bundle for seat in plan.critic} - {seat.bundle for seat in plan.train})
    kinds = bundles[:training], bundles[training : training + critics], bundles[training + critics :]
    bundles = [bundle for kind in kinds for bundle in _by_node(kind)]
    return Placement(
        train=tuple(bundles[seat.bundle][seat.index] for seat in plan.train),
        engines=tuple(tuple(bundles[seat.bundle][seat.index] for seat in engine) for engine in plan.engines),
        critic=tuple(bundles[seat.bundle][seat.index] for seat in plan.critic),
        group=group,
    )


def _by_node(bundles: list[list[Place]]) -> list[list[Place]]:
    """In the order of their nodes, but with a bundle of each size where there was one of that size."""
    ordered = sorted(bundles, key=_node_of)
    of_size = {size: iter([bundle for bundle in ordered if len(bundle) == size]) for size in set(map(len, bundles))}
    return [next(of_size[len(bundle)]) for bundle in bundles]


def _node_of(bundle: list[Place]) -> tuple[Any, ...]:
    return ipaddress.ip_address(bundle[0].host), bundle[0].node, bundle[0].bundle


def _lack(plan: Plan, resource: str) -> str | None:
    """Why the plan cannot be met by the cluster as it is, whoever else uses it."""
    nodes = [int(node["Resources"].get(resource, 0)) for node in ray.nodes() if node["Alive"]]
    advice = "ask for fewer with --actor-num-gpus-per-node or --rollout-num-gpus"
    if resource == "CPU":
        advice += ", or allow more processes than cores with --cpu-slots"
    if plan.engines and plan.train and not set(plan.train) & set(plan.engines[0]):
        advice += ", or let both halves share them with --colocate"
    if plan.devices > sum(nodes):
        return f"needs {plan}, the cluster has {sum(nodes)} {resource}s: {advice}"
    if max(plan.bundles, default=0) > max(nodes):
        return f"needs {max(plan.bundles)} devices on one node, but the largest has {max(nodes)} {resource}s: {advice}"
    return None


def _bundles(plan: Plan, group: PlacementGroup, resource: str) -> list[list[Place]]:
    """The places of each bundle. Only the node's own Ray knows which GPUs a bundle got, so a task in each asks it."""
    addresses = {node["NodeID"]: node["NodeManagerAddress"] for node in ray.nodes()}
    nodes = placement_group_table(group)["bundles_to_node_id"]
    if resource == "GPU":
        asked = [
            _visible_devices.options(
                num_gpus=size,
                scheduling_strategy=PlacementGroupSchedulingStrategy(group, placement_group_bundle_index=bundle),
            ).remote()
            for bundle, size in enumerate(plan.bundles)
        ]
        names = wait(asked, "the nodes to say which GPUs they gave", timeout=60.0)
    else:
        names = [[None] * size for size in plan.bundles]
    return [
        [Place(bundle, nodes[bundle], addresses[nodes[bundle]], device) for device in devices]
        for bundle, devices in enumerate(names)
    ]


@ray.remote(num_cpus=0)
def _visible_devices() -> list[str]:
    """The GPUs of the caller's bundle, in the order of the node."""
    return sorted((str(device) for device in ray.get_gpu_ids()), key=lambda name: (len(name), name))
