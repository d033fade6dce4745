"""Where a node's HTTP server is registered in etcd, for who watches nodes."""

from .etcd import Etcd
from .http_prefix import HTTP_PREFIX
from .registration import Registration


def http_registration(endpoint: str, address: str) -> Registration:
    """address: HOST:PORT under which others reach the server. REQUIRES: a running event loop."""
    return Registration(Etcd(endpoint), HTTP_PREFIX + address, address)
