"""Which prefill node a decode node chooses, and what becomes of that when nodes answer, go or send
what makes no sense; the scripts are beside this file."""

from tests.harness.interaction import Script, play, scripts
from tests.harness.routing_script import routing


@scripts(__file__)
def test_script(script: Script) -> None:
    play(script, routing)
