"""Notifications between processes of one host: in order, with the secret only, never blocking
either end. Writers, and full mailboxes: cpp_cache/dataplane_tests."""

import socket
from collections.abc import Iterator

import pytest

from tasuki.pycache._cpp_cache import Bell, Mailbox
from tasuki.transfer.transports.nvlink.peer_address import MailboxAddress
from tests.harness.waiting import HANG_SECONDS


def send(address: MailboxAddress, *words: bytes, secret: bytes | None = None) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as writer:
        writer.connect(f"\0{address.name}")
        for word in words:
            writer.send((address.secret if secret is None else secret) + word)


@pytest.fixture
def address() -> MailboxAddress:
    return MailboxAddress.new()


@pytest.fixture
def mailbox(address: MailboxAddress) -> Iterator[Mailbox]:
    made = address.open()
    yield made
    made.close()


def test_words_arrive_in_order_and_once(mailbox: Mailbox, address: MailboxAddress) -> None:
    words = [bytes([number]) * 37 for number in range(9)]
    send(address, *words)
    assert mailbox.read() == words
    assert mailbox.read() == []


def test_words_without_the_secret_are_dropped_and_counted(
    mailbox: Mailbox, address: MailboxAddress
) -> None:
    send(address, b"landed", secret=bytes(16))
    send(address, b"", secret=b"short")
    send(address, b"real")
    assert mailbox.read() == [b"real"]
    assert mailbox.dropped == 2


def test_a_word_ends_the_wait_of_who_watches(mailbox: Mailbox, address: MailboxAddress) -> None:
    bell = Bell()
    bell.watch(mailbox.descriptor)
    assert bell.wait(0) and not bell.wait(0)
    send(address, b"word")
    assert bell.wait(HANG_SECONDS) and bell.wait(0), "until it is read"
    mailbox.read()
    assert not bell.wait(0)
    bell.forget(mailbox.descriptor)


def test_a_closed_mailbox_cannot_be_reached_and_gives_nothing(
    mailbox: Mailbox, address: MailboxAddress
) -> None:
    send(address, b"unread")
    mailbox.close()
    mailbox.close()
    assert mailbox.read() == [] and mailbox.descriptor == -1
    with pytest.raises(ConnectionRefusedError):
        send(address)
    again = address.open()
    with pytest.raises(RuntimeError, match="mailbox could not be opened"):
        address.open()
    again.close()
