"""The SGLang engines and their router, as far as SGLang's own options do not say it."""

from __future__ import annotations

from slime.config.section import Count, Port, Seconds, Section, option


class Engine(Section):
    """Engines and router

    Every option of the installed SGLang can be given as --sglang-<name>, every option of its router as --router-<name>.
    """

    sglang_router_ip: str | None = option(None, "Address of a router that runs already; unset: one is started.")
    sglang_router_port: Port | None = option(None, "Port of the router.", derived="a free one")
    sglang_router_request_timeout_secs: Seconds = option(14400, "Longest time of one generation request.")
    sglang_server_concurrency: Count = option(512, "Requests that one engine is given at a time.")
