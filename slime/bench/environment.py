"""The generate function of the async bench: an answer, and an environment that takes its time over it.

How long is in the prompt's metadata, a number for each sample: {"seconds": [0.2, 0.2, 4.0, ...]}. Held-out prompts have
none.
"""

from __future__ import annotations

import asyncio
from typing import Any

from slime.config import Config
from slime.data.sample import Sample, Status
from slime.rollout.generator import FINISHED, Generator
from slime.rollout.responses import begin, grow

SECONDS = "seconds"


async def generate(args: Config, sample: Sample, sampling_params: dict[str, Any]) -> Sample:
    generator = Generator.current()
    begin(sample, sample.tokens[: sample.prompt_length])
    (generation,) = await generator.client.generate(sample.tokens, sampling_params)
    grow(sample, generation)
    sample.status = FINISHED.get(generation.finish_reason, Status.ABORTED)
    (sample.response,) = generator.tokenizer.decode_responses([generation.tokens])
    if SECONDS in sample.metadata:
        sample.non_generation_time = sample.metadata[SECONDS][sample.index % args.n_samples_per_prompt]
        await asyncio.sleep(sample.non_generation_time)
    return sample
