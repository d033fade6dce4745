"""TLS certificates for tests: an authority, a server's and a node's certificate, a stranger's."""

from dataclasses import dataclass
from pathlib import Path

import trustme


@dataclass(frozen=True)
class Issued:
    certificate: str
    key: str


class Authority:
    """A certificate authority. It writes its certificates into `folder`."""

    def __init__(self, folder: Path, name: str) -> None:
        self._authority = trustme.CA()
        self._folder = folder
        self._name = name
        self.path = str(folder / f"{name}-ca.pem")
        self._authority.cert_pem.write_to_path(self.path)

    def issue(self, *names: str) -> Issued:
        """Issue a certificate for the names, by default for 127.0.0.1 and localhost."""
        leaf = self._authority.issue_cert(*(names or ("127.0.0.1", "localhost")))
        stem = self._folder / f"{self._name}-{len(list(self._folder.iterdir()))}"
        issued = Issued(f"{stem}.pem", f"{stem}.key")
        leaf.cert_chain_pems[0].write_to_path(issued.certificate)
        leaf.private_key_pem.write_to_path(issued.key)
        return issued
