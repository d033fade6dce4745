"""Fixtures of an agent's front over a scripted engine with the answer "fine"."""

from collections.abc import Iterator

import pytest

from tasuki.server.text.text_codec import TextCodec
from tests.harness.agent_front import AgentFront, running_agent_front


@pytest.fixture
def front(codec: TextCodec) -> Iterator[AgentFront]:
    with running_agent_front(codec) as running:
        yield running
