"""Startup of a daemon: its local checkpoint, its log line about loading, its banner, its ready
line."""

import contextlib
import gc
import ipaddress
import json
import logging
import sys
from collections.abc import Mapping
from dataclasses import dataclass, replace

from tasuki.engine.config import AUTO_DTYPE, EngineConfig, EngineConfigError
from tasuki.model.named_checkpoints import hub_checkpoint, is_hub_name
from tasuki.server.bind import join_address
from tasuki.server.config import ServerConfig
from tasuki.utils.logs import writes_json
from tasuki.utils.system import report_ready

log = logging.getLogger(__name__)

_QUESTION = {"messages": [{"role": "user", "content": "Hello"}], "max_tokens": 32}
_MIDDLE_BEFORE_FULL = 200
"""Number of Python's middle garbage collections before a full one is considered; Python's default
is 10. A few requests cause one middle collection. Old garbage cycles are freed later because of
this: some megabytes."""


def with_local_checkpoint(
    engine_config: EngineConfig, server_config: ServerConfig
) -> tuple[EngineConfig, ServerConfig]:
    """Return the configs with a local folder as the model. A model from huggingface.co keeps its
    name for HTTP clients, unless served_model_name is set. Blocks during the download. Raises
    HubError, EngineConfigError."""
    name, revision = engine_config.model, engine_config.revision
    if not name:
        raise EngineConfigError(
            "model is not set: give the folder of a checkpoint, or its name on huggingface.co, as "
            "Qwen/Qwen3.5-9B"
        )
    if not is_hub_name(name):
        if revision:
            raise EngineConfigError(
                f"revision {revision}: model {name!r} is a folder or no name of huggingface.co, "
                "and only those have revisions: leave it out"
            )
        return engine_config, server_config
    folder = str(hub_checkpoint(name, revision))
    served = server_config.served_model_name or name
    return (
        replace(engine_config, model=folder, revision=""),
        replace(server_config, served_model_name=served),
    )


def log_loading(config: EngineConfig) -> None:
    """Log the model, dtype and device being loaded. REQUIRES: the model is a folder."""
    log.info(
        "loading %s as %s on %s%s",
        *(config.model, config.compute_dtype, config.device, _reason(config)),
    )


def _reason(config: EngineConfig) -> str:
    """Return the reason for the dtype chosen by `auto`, as text; empty if the dtype was given."""
    if config.dtype != AUTO_DTYPE:
        return ""
    if config.device.split(":")[0] != "cpu":
        return ", as GPUs multiply it"
    has = "no bf16 units" if config.compute_dtype == "float32" else "bf16 units"
    return f", since this CPU has {has} (--dtype says otherwise)"


@dataclass(frozen=True)
class Served:
    """The addresses and heading of a started node. grpc, http: HOST:PORT as bound; http is None
    without an HTTP server. about: heading of the node's page, from about_node()."""

    about: Mapping[str, str]
    grpc: str
    http: str | None
    tls: bool
    keyed: bool

    def announce(self) -> None:
        """Write the banner to stderr as lines of text, or log one record if the log is JSON. A
        failed write is ignored."""
        if writes_json():
            places = {"grpc": self.grpc, "http": self.http, "page": self.page}
            log.info("ready", extra={**self.about, **places})
            return
        # A full or closed log must not end the node.
        with contextlib.suppress(OSError, ValueError):
            sys.stderr.write("".join(f"{line}\n" for line in self.lines()))
            sys.stderr.flush()

    def lines(self) -> list[str]:
        rows = []
        if self.http is not None:
            rows.append(("page", f"{self.page}"))
            if self._answers:
                rows.append(("OpenAI, Anthropic", f"{self.page}v1"))
        rows.append(("gRPC", self.grpc))
        if self.http is not None and self._answers:
            rows.append(("try", self._curl()))
        about = self.about
        head = f"{about['node']} ({about['role']}) is ready: {about['model']}"
        return [head, *(f"  {name:<18} {where}" for name, where in rows)]

    @property
    def page(self) -> str | None:
        if self.http is None:
            return None
        return f"{'https' if self.tls else 'http'}://{reachable(self.http)}/"

    @property
    def _answers(self) -> bool:
        return self.about["role"] != "prefill"

    def _curl(self) -> str:
        more = " --cacert CA.pem" if self.tls else ""
        more += " -H 'Authorization: Bearer KEY'" if self.keyed else ""
        kind = "-H 'Content-Type: application/json'"
        return f"curl {self.page}v1/chat/completions{more} {kind} -d '{json.dumps(_QUESTION)}'"


def reachable(address: str) -> str:
    """Return HOST:PORT for this machine to reach the bound address. An unspecified host is replaced
    by loopback's."""
    host, _, port = address.rpartition(":")
    bare = host.strip("[]")
    try:
        unspecified = ipaddress.ip_address(bare).is_unspecified
    except ValueError:
        unspecified = False
    loopback = "::1" if ":" in bare else "127.0.0.1"
    return join_address(loopback, int(port)) if unspecified else address


def announce_ready(address: str, http: str | None = None, handover: str | None = None) -> None:
    """Write the daemon's one line on stdout, {"ready": "HOST:PORT"}, once it takes calls. The keys
    "http" and "handover" follow if given. Also notify a waiting service manager. http, handover:
    HOST:PORT of the separate servers for HTTP and for decode nodes."""
    addresses = {"ready": address, "http": http, "handover": handover}
    known = {name: where for name, where in addresses.items() if where is not None}
    sys.stdout.write(json.dumps(known) + "\n")
    sys.stdout.flush()
    report_ready(", ".join(f"{name} at {where}" for name, where in known.items()))


def spare_collections() -> None:
    """Collect garbage, exempt all existing objects from later collections, and make full
    collections rarer. Call it once, when the daemon is ready: these objects live until its end. A
    full collection through them would stop every thread for a fifth of a second. A collection
    through the objects of a thousand streams takes as long. By default it starts once their number
    has grown by a quarter."""
    gc.collect()
    gc.freeze()
    young, middle, _ = gc.get_threshold()
    gc.set_threshold(young, middle, _MIDDLE_BEFORE_FULL)
