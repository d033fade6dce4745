"""Where a node's HTTP server is registered in etcd, for who watches nodes."""

from .etcd_access import EtcdAccess
from .http_prefix import HTTP_PREFIX
from .registration import Registration


def http_registration(access: EtcdAccess, endpoint: str, address: str) -> Registration:
    """address: HOST:PORT under which others reach the server. REQUIRES: a running event loop.
    Raises EtcdAccessError."""
    return Registration(access.client(endpoint), HTTP_PREFIX + address, address)
