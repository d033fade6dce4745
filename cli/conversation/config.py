"""The settings of `tasuki chat`."""

from dataclasses import dataclass

from tasuki.utils.config.options import option


@dataclass(frozen=True)
class ChatConfig:
    target: str = option("", "HOST:PORT of a running node's HTTP or gRPC; none: start one here")
    model: str = option(
        "",
        "checkpoint folder for a node that is started; the embedded if empty",
        argument="MODEL",
    )
    ca: str = option("", "PEM file of a CA: connect by TLS and check the node against it")
    api_key: str = option("", "the node's key, where it requires one")
    system: str = option("", "a system message to begin with")
    max_new_tokens: int = option(256, "tokens of an answer at most")
    temperature: float = option(0.7, "0 takes the likeliest token")
    top_p: float = option(0.95, "draw from the likeliest tokens of this share")
    seed: int = option(0, "of the draws")
