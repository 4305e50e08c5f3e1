"""What Hugging Face's implementation says of a checkpoint, as the reference."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM


class Reference:
    def __init__(self, model: Path) -> None:
        self.model = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32).eval()

    @torch.no_grad()
    def log_probs(self, prompt: Sequence[int], response: Sequence[int], temperature: float = 1.0) -> list[float]:
        """Of each response token, under the whole distribution at `temperature`."""
        logits_TV = self.model(torch.tensor([[*prompt, *response]])).logits[0, len(prompt) - 1 : -1]
        log_probs_TV = torch.log_softmax(logits_TV.float() / temperature, -1)
        return log_probs_TV[torch.arange(len(response)), torch.tensor(response)].tolist()

    @torch.no_grad()
    def greedy(self, prompt: Sequence[int], length: int) -> list[int]:
        tokens = list(prompt)
        for _ in range(length):
            tokens.append(int(self.model(torch.tensor([tokens])).logits[0, -1].argmax()))
        return tokens[len(prompt) :]

    def tensors(self) -> dict[str, torch.Tensor]:
        """HF name -> weight, those that are in the files."""
        return {name: weight for name, weight in self.model.state_dict().items() if name != "lm_head.weight"}
