"""`python -m slime.inference.launch_router OPTIONS`: the stock sglang-router, with its own options.

What sglang_router.launch_router does, but for an import: its balancer for debugging brings SGLang and torch with it,
seconds of a start that else takes a tenth of one. A token in the environment variable SLIME_TOKEN becomes `--api-key`;
on a command line everyone on the machine could read it.
"""

import argparse
import os
import sys

from setproctitle import setproctitle
from sglang_router.router import Router
from sglang_router.router_args import RouterArgs


def main(options: list[str]) -> None:
    token = os.environ.pop("SLIME_TOKEN", None)
    parser = argparse.ArgumentParser()
    RouterArgs.add_cli_args(parser, use_router_prefix=False)
    args = RouterArgs.from_cli_args(parser.parse_args(options), use_router_prefix=False)
    args.api_key = token or args.api_key
    setproctitle("sglang::router")
    if args.mini_lb:
        from sglang_router.mini_lb import MiniLoadBalancer

        MiniLoadBalancer(args).start()
    else:
        Router.from_args(args).start()


if __name__ == "__main__":
    main(sys.argv[1:])
