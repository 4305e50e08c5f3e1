"""The rooms below training import no torch, and data needs no transformers where there is a tokenizer.json."""

import subprocess
import sys

from slime.tiny import write_checkpoint


def test_data_and_rewards_run_without_torch_and_transformers(tmp_path):
    code = f"""
import sys
import slime.rewards, slime.data.eval_sets, slime.data.batch
from slime.data.tokenizer import Tokenizer
from slime.data.template import ChatTemplate
ChatTemplate(Tokenizer.load({str(write_checkpoint(tmp_path))!r}))
assert not {{"torch", "transformers", "ray"}} & set(sys.modules)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
