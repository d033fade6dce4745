"""What is shut down: connections accepted on ports that began to listen after the mark."""

import os
import socket

import pytest
from tasuki.transfer.transports.nixl.inbound_sockets import InboundSockets, listening_ports


def test_only_connections_to_new_listeners_are_broken_and_no_handle_is_left() -> None:
    with socket.create_server(("127.0.0.1", 0)) as old:
        before = listening_ports()
        with socket.create_server(("127.0.0.1", 0)) as new:
            inbound = InboundSockets(before)
            ends = [socket.create_connection(server.getsockname()) for server in (old, new)]
            accepted = [server.accept()[0] for server in (old, new)]
            handles = len(os.listdir("/proc/self/fd"))
            assert inbound.shut_down() == 1
            assert len(os.listdir("/proc/self/fd")) == handles
            ends[0].sendall(b"stands")
            assert accepted[0].recv(6) == b"stands"
            # What still comes is answered by RST.
            assert ends[1].recv(1) == b""
            with pytest.raises((ConnectionResetError, BrokenPipeError)):
                for _ in range(100):
                    ends[1].sendall(b"late")
            for end in (*ends, *accepted):
                end.close()
