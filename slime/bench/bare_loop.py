"""BareLoop: what a user writes to train with Megatron-core without a framework. The bare side of the train bench.

Megatron's own cross-entropy makes the log-probs, logits are those of the whole row, nothing is reported but the loss.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from megatron.core import parallel_state as mpu
from megatron.core.distributed import DistributedDataParallel, DistributedDataParallelConfig, finalize_model_grads
from megatron.core.models.gpt import GPTModel
from megatron.core.optimizer import OptimizerConfig, get_megatron_optimizer
from megatron.core.pipeline_parallel import get_forward_backward_func
from megatron.core.transformer.module import Float16Module
from torch import Tensor

from slime.config import Config
from slime.models import Shard, family_of, load_hf, read_hf_config
from slime.training.build import transformer_config
from slime.training.layers import block_spec
from slime.training.packing import MicroBatch
from slime.training.parallel import Parallel


class BareLoop:
    """GPTModel in Megatron's DDP, its optimizer, its schedule of forward and backward passes.

    The layers and their configuration are the trainer's: Megatron's own local layers take no packed rows.
    """

    def __init__(self, config: Config, parallel: Parallel) -> None:
        family = family_of(read_hf_config(config.hf_checkpoint))
        transformer = transformer_config(config, parallel, family)
        model = GPTModel(
            config=transformer,
            transformer_layer_spec=block_spec(transformer, post_norms=family.post_norms),
            pre_process=mpu.is_pipeline_first_stage(),
            post_process=mpu.is_pipeline_last_stage(),
            parallel_output=True,
            **family.gpt_arguments(parallel.tp_size),
        ).to(parallel.device.torch)
        wrapped = Float16Module(transformer, model) if config.bf16 else model
        load_hf(Shard(family, [model]), config.hf_checkpoint)
        divided = config.use_distributed_optimizer
        ddp = DistributedDataParallelConfig(grad_reduce_in_fp32=True, use_distributed_optimizer=divided)
        self.model = DistributedDataParallel(transformer, ddp, wrapped)
        transformer.finalize_model_grads_func = (
            lambda chunks, _, **options: finalize_model_grads(chunks, None, **options)  # the loss is divided already
        )
        self.optimizer = get_megatron_optimizer(
            OptimizerConfig(
                lr=config.lr,
                min_lr=config.lr,
                weight_decay=config.weight_decay,
                adam_beta1=config.adam_beta1,
                adam_beta2=config.adam_beta2,
                adam_eps=config.adam_eps,
                clip_grad=config.clip_grad,
                bf16=config.bf16,
                params_dtype=transformer.params_dtype,
                use_distributed_optimizer=divided,
            ),
            [self.model],
            use_gloo_process_groups=False,
        )
        transformer.grad_scale_func = self.optimizer.scale_loss
        self.eps_clip = config.eps_clip

    def train(self, batches: list[MicroBatch]) -> Tensor:
        """One optimizer step. Returns this rank's part of the loss."""
        self.model.zero_grad_buffer()
        self.optimizer.zero_grad()
        losses = get_forward_backward_func()(
            forward_step_func=self._forward,
            data_iterator=iter(batches),
            model=[self.model],
            num_microbatches=len(batches),
            seq_length=max(batch.tokens_1T.shape[1] for batch in batches),
            micro_batch_size=1,
            forward_only=False,
        )
        self.optimizer.step()
        return torch.stack([one["loss"] for one in losses]).sum()

    def _forward(self, batches: Iterator[MicroBatch], model: torch.nn.Module) -> tuple[Tensor, Callable[..., Any]]:
        batch = next(batches)
        labels_1T = torch.zeros_like(batch.tokens_1T)
        labels_1T[0, batch.rows_R] = batch.targets_R
        output = model(batch.tokens_1T, batch.positions_1T, None, labels=labels_1T, packed_seq_params=batch.sequences)

        def loss(entropies_1T: Tensor) -> tuple[Tensor, Tensor, dict[str, Tensor]]:
            log_probs_R = -entropies_1T[0, batch.rows_R]
            ratio_R = (log_probs_R - batch.rollout_log_probs_R).exp()
            advantages_R = batch.samples.rewards_N[batch.samples.sample_R]
            clipped_R = ratio_R.clamp(1 - self.eps_clip, 1 + self.eps_clip)
            total = (-torch.min(ratio_R * advantages_R, clipped_R * advantages_R) * batch.weights_R).sum()
            total = total / batch.step.num_samples
            return total, torch.zeros((), dtype=torch.int, device=total.device), {"loss": total.detach()}

        return output, loss
