"""The critic's ranks as Ray actors, one for each of the policy's: on the same devices, or on as many of their own.

What a rank of one has for that of the same place in the other (values, returns) it leaves in the object store;
references to it are all that comes by the driver.
"""

from __future__ import annotations

import ray

from slime.cluster.trainers import HANDOVER_S, Rank, Ranks, Trained


class CriticActor(Rank):
    """One rank of the critic."""

    def start(self, master_addr: str, master_port: int) -> None:
        """Builds the model."""
        from slime.training.critic import Critic

        self.trainer = Critic(self.config, self.rank, self.world_size, master_addr, master_port)

    def values(self, rollout_id: int, batches: list[ray.ObjectRef]) -> ray.ObjectRef:
        """Of this rank's response tokens, in the object store; `batches` holds one reference a data-parallel rank."""
        batch = ray.get(batches[self.trainer.dp_rank], timeout=HANDOVER_S)
        return ray.put(self.trainer.prepare(rollout_id, batch))

    def train(self, returns: list[ray.ObjectRef]) -> Trained:
        """On the rollout of the last values; `returns` holds one reference a rank."""
        result = self.trainer.update(ray.get(returns[self.rank], timeout=HANDOVER_S))
        return result.rollout, result.steps


class Critics(Ranks):
    """All ranks of the critic."""

    kind, name = CriticActor, "critic"

    def values(self, rollout_id: int, batches: list[ray.ObjectRef]) -> list[ray.ObjectRef]:
        return [rank.values.remote(rollout_id, batches) for rank in self.ranks]

    def train(self, returns: list[ray.ObjectRef]) -> list[ray.ObjectRef]:
        return [rank.train.remote(returns) for rank in self.ranks]
