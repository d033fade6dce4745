"""What this process reports to the service manager that started it (systemd's Type=notify).

A datagram to the socket that NOTIFY_SOCKET names; without one nothing is sent. Any thread. Nothing
waits, and nothing fails: a manager that cannot be reached is logged once a message.
"""

import logging
import os
import socket

log = logging.getLogger(__name__)

_VARIABLE = "NOTIFY_SOCKET"


def report_ready(status: str) -> None:
    """The service takes calls. status: a line for `systemctl status`."""
    _send(f"READY=1\nSTATUS={status}")


def report_stopping(status: str) -> None:
    """The service has begun to end. status: as report_ready()."""
    _send(f"STOPPING=1\nSTATUS={status}")


def _send(message: str) -> None:
    path = os.environ.get(_VARIABLE, "")
    if not path:
        return
    # "@" stands for the zero byte of an abstract socket's name.
    address = "\0" + path[1:] if path.startswith("@") else path
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as manager:
            manager.setblocking(False)
            manager.sendto(message.encode(), address)
    except OSError as error:
        log.warning("the service manager at %s takes no message: %s", path, error.strerror)
