"""The SGLang engines and their router, as far as SGLang's own options do not say it."""

from __future__ import annotations

from slime.config.section import Count, Deadline, Path, Port, Seconds, Section, Strings, option


class Engine(Section):
    """Engines and router

    Every option of the installed SGLang can be given as --sglang-<name>, every option of its router as --router-<name>.
    """

    sglang_config: Path | None = option(
        None,
        "YAML of the models to serve and of their groups of engines: roles, sizes, SGLang's options; docs/engines.md."
        " Unset: the policy, by one group of --rollout-num-gpus devices.",
    )
    prefill_num_servers: Count | None = option(
        None, "Of the policy's engines so many only compute prompts, the others only responses (PD disaggregation)."
    )
    rollout_external_engine_addrs: Strings = option(
        (), "host:port of engines of the policy that run already; none is started then. docs/engines.md."
    )
    sglang_router_ip: str | None = option(None, "Address of a router that runs already; unset: one is started.")
    sglang_router_port: Port | None = option(None, "Port of the router.", derived="a free one")
    sglang_router_request_timeout_secs: Deadline = option(14400.0, "Longest time of one generation request.")
    sglang_server_concurrency: Count = option(512, "Requests that one engine is given at a time.")


class Faults(Section):
    """Fault tolerance

    What happens when an engine or the router dies while the run goes on; docs/faults.md.
    """

    use_fault_tolerance: bool = option(
        False,
        "An engine or a router that dies, and an engine that no longer answers, is started again and given the current"
        " weights, while others do its requests; without it the run ends.",
    )
    rollout_health_check_interval: Seconds = option(
        30.0, "With --use-fault-tolerance: how long after one answer an engine is asked again whether it is well."
    )
    rollout_health_check_timeout: Deadline = option(
        30.0, "After how long without an answer an engine is taken for dead, and killed."
    )
    rollout_health_check_first_wait: Seconds = option(
        0.0, "How long after an engine has come up it is asked for the first time: kernels may have to be compiled."
    )
