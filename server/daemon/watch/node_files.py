"""Files and folders that a node lives on, by the settings that name them: certificates with an
end, and folders whose disk may fill up. Immutable, any thread."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from tasuki.engine.config import EngineConfig
from tasuki.utils.certificate_dates import not_after_dates
from tasuki.utils.tls import ServerTls


@dataclass(frozen=True)
class NodeFiles:
    """authorities: PEM files of those whom this node trusts, beside its server's. folders: that it
    writes to."""

    authorities: Mapping[str, str] = field(default_factory=dict)
    folders: Mapping[str, str] = field(default_factory=dict)

    def certificate_ends(self, tls: ServerTls | None) -> dict[str, float]:
        """Seconds since 1970, by setting, of the files as they are now. tls: the server's. A chain
        ends with the first of its certificates; authorities with the last, since a file may hold
        an old one beside its successor. A file that is not there or holds none is left out: it
        is refused where it is used."""
        found = {}
        authorities = dict(self.authorities)
        if tls is not None:
            found["tls_cert"] = _dates(tls.certificate)[:1]
            if tls.client_ca:
                authorities["tls_client_ca"] = tls.client_ca
        for setting, path in authorities.items():
            found[setting] = _dates(path)[-1:]
        return {setting: dates[0] for setting, dates in found.items() if dates}


def folders_of(config: EngineConfig) -> dict[str, str]:
    """Those that the engine writes to."""
    return {} if config.disk_cache is None else {"disk_cache": config.disk_cache}


def _dates(path: str) -> list[float]:
    """In order of time."""
    try:
        with open(path, encoding="ascii", errors="replace") as file:
            return sorted(not_after_dates(file.read()))
    except (OSError, ValueError, IndexError):
        return []
