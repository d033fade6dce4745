"""A decode node's choice of a prefill node, also when nodes answer, leave or send nonsense. The
scripts are beside this file."""

from tests.harness.interaction import Script, play, scripts
from tests.harness.routing_script import routing


@scripts(__file__)
def test_script(script: Script) -> None:
    play(script, routing)
