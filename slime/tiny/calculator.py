"""The generate function of the `tool` task: the model may ask a calculator, and goes on with what it says.

A turn that is a call, `<tool_call>34*62</tool_call>`, is answered by a turn of the tool; any other turn is the answer.
What the tool says is in the tokens and masked: nobody sampled it.

    --custom-generate-function-path slime.tiny.calculator.generate
"""

from __future__ import annotations

import re
import time

from slime.config import Config
from slime.data.sample import Sample, Status
from slime.rollout.generator import FINISHED, Generator
from slime.rollout.responses import begin, grow, observe, room
from slime.tiny.tasks import calculate

MAX_TURNS = 3
CALL = re.compile(r"<tool_call>(.*)</tool_call>", re.DOTALL)


async def generate(args: Config, sample: Sample, sampling_params: dict) -> Sample:
    """Turn by turn, in at most `max_new_tokens` tokens with what the tool says; the last turn is what is graded."""
    generator = Generator.current()
    begin(sample, sample.tokens[: sample.prompt_length])
    sample.session_id = f"{sample.rollout_id}-{sample.index}"  # a router that heeds it keeps all turns on one engine
    for turn in range(1, MAX_TURNS + 1):
        max_new_tokens = room(args, sample, sampling_params)
        if max_new_tokens == 0:
            sample.status = Status.TRUNCATED
            break
        (generation,) = await generator.client.generate(
            sample.tokens, sampling_params | {"max_new_tokens": max_new_tokens}, session=sample.session_id
        )
        grow(sample, generation)
        sample.metadata["round_number"] = turn
        sample.status = FINISHED.get(generation.finish_reason, Status.ABORTED)
        (sample.response,) = generator.tokenizer.decode_responses([generation.tokens])
        call = CALL.fullmatch(sample.response)
        if sample.status is not Status.COMPLETED or call is None or turn == MAX_TURNS:
            break
        start = time.perf_counter()
        result = {"role": "tool", "content": calculate(call[1])}
        sample.non_generation_time += time.perf_counter() - start
        asked = {"role": "assistant", "content": sample.response}
        observe(sample, generator.chat.after(sample.tokens, asked, [result]))
    return sample
