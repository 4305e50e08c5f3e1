"""`python -m slime.inference.launch OPTIONS`: the stock SGLang server with its own options, patched where there is no
CUDA, listening nowhere but where it is told to, and asked for routed experts in a way that the router passes on.

What is patched stands at the top of the module because the processes that the server spawns, where there is CUDA,
import this module again. A token in the environment variable SLIME_TOKEN becomes `--api-key`; on a command line
everyone on the machine could read it.
"""

import os
import sys
import tempfile
from collections.abc import Callable
from functools import partial
from typing import Any

import torch

from slime.inference.router import EXPERTS_LABEL
from slime.platform import sglang_cpu, stores

if not torch.cuda.is_available():
    sglang_cpu.patch()
from sglang.srt.plugins.hook_registry import HookRegistry, HookType


def load_file(original: Callable[[str], str], ipc_name: str) -> str:
    """SGLang's schedulers share their load in a file, in /dev/shm and left there when they are killed. The temporary
    directory is ours to remove."""
    return os.path.join(tempfile.gettempdir(), os.path.basename(original(ipc_name)))


def heed_label(original: Callable[[Any], None], request: Any) -> None:
    """Of a GenerateReqInput, before SGLang looks at it."""
    if request.custom_labels and request.custom_labels.pop(EXPERTS_LABEL, None):
        request.return_routed_experts = True
    original(request)


rendezvous = sys.modules["torch.distributed.rendezvous"]  # the package has a function of this name
rendezvous._create_c10d_store = partial(stores.of_rendezvous, rendezvous._create_c10d_store)
HookRegistry.register("sglang.srt.managers.load_snapshot.shm_path_for", load_file, HookType.AROUND)
HookRegistry.register(
    "sglang.srt.managers.io_struct.GenerateReqInput.normalize_batch_and_arguments", heed_label, HookType.AROUND
)


def main(options: list[str]) -> None:
    from sglang.launch_server import load_plugins, prepare_server_args, run_server
    from sglang.srt.utils import kill_process_tree

    if token := os.environ.pop("SLIME_TOKEN", None):
        options = [*options, "--api-key", token]
    load_plugins()  # applies the hooks
    try:
        run_server(prepare_server_args(options))
    finally:
        kill_process_tree(os.getpid(), include_parent=False)


if __name__ == "__main__":
    main(sys.argv[1:])
