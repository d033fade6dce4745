"""Where a node's HTTP server is registered in etcd, for who watches nodes."""

from .etcd import Etcd
from .etcd_access import HTTP_PREFIX, EtcdAccess
from .registration import Registration


def http_registration(access: EtcdAccess, endpoint: str, address: str) -> Registration:
    """address: HOST:PORT under which others reach the server. REQUIRES: a running event loop.
    Raises EtcdAccessError."""
    return Registration(Etcd(endpoint, access), HTTP_PREFIX + address, address)
