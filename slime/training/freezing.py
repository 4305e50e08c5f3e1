"""Which parameters train: --only-train-params-name-list and --freeze-params-name-list."""

from __future__ import annotations

import re
from collections.abc import Sequence

import torch
from torch import nn

from slime.config import Config
from slime.training.parallel import Parallel

ONLY, FROZEN = "--only-train-params-name-list", "--freeze-params-name-list"


def freeze(chunks: Sequence[nn.Module], config: Config, parallel: Parallel) -> None:
    """Takes the gradient from parameters by Megatron's names of them (`decoder.layers.0.mlp.linear_fc1.weight`).

    A pattern is a regular expression that is searched for anywhere in the name. Where both lists are given, what
    trains is in the first and not in the second. Collective.

    Raises:
        ValueError: a pattern that no parameter of any rank has, or a rank on which nothing would be left to train.
    """
    patterns = [(ONLY, p) for p in config.only_train_params_name_list]
    patterns += [(FROZEN, p) for p in config.freeze_params_name_list]
    if not patterns:
        return
    parameters = [named for chunk in chunks for named in chunk.named_parameters()]
    hits = torch.tensor([[re.search(p, name) is not None for _, p in patterns] for name, _ in parameters])
    found = parallel.gather(hits.any(dim=0).float().to(parallel.device.torch)).amax(dim=0).tolist()
    for (option, pattern), is_found in zip(patterns, found, strict=True):
        if not is_found:
            example = parameters[len(parameters) // 2][0]
            raise ValueError(f"{option} {pattern}: no parameter has that in its name; one is called {example}")
    only = torch.tensor([option == ONLY for option, _ in patterns])
    trained = hits[:, only].any(dim=1) if only.any() else torch.ones(len(parameters), dtype=torch.bool)
    trained &= ~hits[:, ~only].any(dim=1)
    if not trained.any():
        raise ValueError(f"{ONLY}, {FROZEN}: nothing is left to train on training rank {parallel.rank}")
    for (_, parameter), trains in zip(parameters, trained.tolist(), strict=True):
        parameter.requires_grad_(trains)
