"""Notifications between processes: in order, with the secret only, never blocking either end."""

import dataclasses
from collections.abc import Iterator
from contextlib import closing

import pytest

from tasuki.transfer.errors import TransportError
from tasuki.transfer.transports.nvlink.mailbox import Mailbox, MailboxWriter


@pytest.fixture
def mailbox() -> Iterator[Mailbox]:
    with closing(Mailbox()) as made:
        yield made


def test_words_of_two_writers_arrive_each_in_order(mailbox: Mailbox) -> None:
    with closing(MailboxWriter(mailbox.address)) as a, closing(MailboxWriter(mailbox.address)) as b:
        for number in range(4):
            assert a.write(bytes([0, number]))
            assert b.write(bytes([1, number]))
    arrived = mailbox.read()
    for writer in range(2):
        assert [word[1] for word in arrived if word[0] == writer] == [0, 1, 2, 3]
    assert mailbox.read() == []


def test_a_full_mailbox_takes_more_once_it_was_read(mailbox: Mailbox) -> None:
    with closing(MailboxWriter(mailbox.address)) as writer:
        written = 0
        while writer.write(written.to_bytes(4, "little")):
            written += 1
            assert written < 1_000_000, "never full"
        assert len(mailbox.read()) == written
        assert writer.write(b"more")
    assert mailbox.read() == [b"more"]


def test_words_without_the_secret_are_dropped_and_counted(mailbox: Mailbox) -> None:
    forged = dataclasses.replace(mailbox.address, secret=bytes(16))
    with closing(MailboxWriter(forged)) as writer:
        writer.write(b"landed")
    assert mailbox.read() == []
    assert mailbox.dropped == 1


def test_a_writer_learns_that_its_reader_is_gone(mailbox: Mailbox) -> None:
    with closing(MailboxWriter(mailbox.address)) as writer:
        mailbox.close()
        with pytest.raises(TransportError, match="gone"):
            writer.write(b"anybody")
    with pytest.raises(TransportError, match="cannot be reached"):
        MailboxWriter(mailbox.address)
