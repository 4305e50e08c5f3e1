"""Functions as users write them, for the options of training that take a path."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor


def weighed_likelihood(args: Any, batch: dict, logits: Tensor, sum_of_sample_mean: Any) -> tuple[Tensor, dict]:
    """--custom-loss-function-path: negative log-likelihood, each sample weighed by its train_metadata (case 29)."""
    targets = torch.cat([t[len(t) - n :] for t, n in zip(batch["tokens"], batch["response_lengths"], strict=True)])
    log_probs = logits.float().log_softmax(-1).gather(-1, targets[:, None])[:, 0]
    of_samples = zip(batch["loss_masks"], batch["train_metadata"], strict=True)
    weights = torch.cat([torch.full_like(mask, metadata["weight"]) for mask, metadata in of_samples])
    loss = sum_of_sample_mean(-log_probs * weights)
    gap = (log_probs - torch.cat(batch["current_log_probs"])).abs()
    return loss, {"weighed": loss, "gap": sum_of_sample_mean(gap), "num_columns": torch.tensor(float(len(batch)))}


def likelihood(args: Any, batch: dict, logits: Tensor, sum_of_sample_mean: Any) -> tuple[Tensor, dict]:
    """--custom-loss-function-path: tokens may be on several ranks."""
    values = sum_of_sample_mean(-torch.cat(batch["current_log_probs"]) * torch.cat(batch["advantages"]))
    return values, {"largest": sum_of_sample_mean(logits.amax(-1).detach())}


def half_without_the_first_token(
    args: Any, *, pg_loss, train_log_probs, rollout_log_probs, loss_masks, total_lengths, response_lengths
) -> tuple[Tensor, list[Tensor], dict[str, Tensor]]:
    """--custom-tis-function-path."""
    assert [len(one) for one in train_log_probs] == [len(one) for one in rollout_log_probs] == response_lengths
    masks = [torch.cat([torch.zeros_like(mask[:1]), mask[1:]]) for mask in loss_masks]
    return pg_loss / 2, masks, {"my_ratio": (torch.cat(train_log_probs) - torch.cat(rollout_log_probs)).exp()}


def forgets_a_token(args: Any, *, pg_loss, loss_masks, **_: Any) -> tuple[Tensor, list[Tensor], dict[str, Tensor]]:
    return pg_loss[1:], loss_masks, {}


def by_a_constant_length(total_lengths, response_lengths, loss_masks, calculate_per_token_loss):
    """--custom-pg-loss-reducer-function-path: every sample counts by its tokens over 8 (Dr. GRPO)."""

    def reduce(pg_loss: Tensor) -> Tensor:
        parts = zip(pg_loss.split(response_lengths), loss_masks, strict=True)
        return torch.stack([(part * mask).sum() / 8 for part, mask in parts]).sum()

    return reduce


def alternating(args: Any, rollout_data: dict) -> None:
    """--custom-advantage-function-path: 1, -2, 1, -2, ...: a negative mean in most samples."""
    rollout_data["advantages"] = [torch.tensor([1.0, -2.0] * n)[:n] for n in rollout_data["response_lengths"]]


def rising(args: Any, rollout_data: dict) -> None:
    """--custom-advantage-function-path: the reward times the token's place in the response."""
    rollout_data["advantages"] = [
        reward * torch.arange(n, dtype=torch.float32)
        for reward, n in zip(rollout_data["rewards"], rollout_data["response_lengths"], strict=True)
    ]


def only_likely_tokens(args: Any, rollout_id: int, rollout_data: dict) -> None:
    """--rollout-data-postprocess-path: leaves out what the policy itself finds unlikely."""
    assert rollout_id == 0 and len(rollout_data["advantages"]) == len(rollout_data["tokens"])
    parts = zip(rollout_data["loss_masks"], rollout_data["log_probs"], strict=True)
    rollout_data["loss_masks"] = [mask * (log_probs > -4.15) for mask, log_probs in parts]


def unmasks(args: Any, rollout_id: int, rollout_data: dict) -> None:
    rollout_data["loss_masks"] = [torch.ones_like(mask) for mask in rollout_data["loss_masks"]]


def no_advantages(args: Any, rollout_data: dict) -> None: ...


def with_a_fixed_embedding(pre_process: bool, post_process: bool, vp_stage: int | None) -> Any:
    """--custom-model-provider-path."""
    from slime.training.provider import usual_model

    CALLS.append(("provide", pre_process, post_process, vp_stage))
    model = usual_model(pre_process, post_process, vp_stage)
    model.embedding.requires_grad_(False)
    return model


CALLS: list[tuple[Any, ...]] = []  # of the hooks of training, in order


def note_init(args: Any) -> None:
    CALLS.append(("init", args.lr, torch.distributed.is_initialized()))


def note_log_prob(args: Any, model: list[torch.nn.Module], store_prefix: str) -> None:
    CALLS.append(("log_prob", store_prefix, len(model)))


def note_step(args: Any, rollout_id: int, step_id: int, model: list, optimizer: Any, opt_param_scheduler: Any) -> None:
    CALLS.append(("step", rollout_id, step_id, opt_param_scheduler.num_steps))
    assert model[0].training and optimizer.param_groups
