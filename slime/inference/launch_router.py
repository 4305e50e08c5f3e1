"""`python -m slime.inference.launch_router OPTIONS`: the stock sglang-router, with its own options.

A token in the environment variable SLIME_TOKEN becomes `--api-key`; on a command line everyone on the machine could
read it.
"""

import os
import sys

from sglang_router.launch_router import launch_router, parse_router_args


def main(options: list[str]) -> None:
    token = os.environ.pop("SLIME_TOKEN", None)
    router = parse_router_args(options)
    router.api_key = token or router.api_key
    launch_router(router)


if __name__ == "__main__":
    main(sys.argv[1:])
