"""Scripts of a decode node that asks prefill nodes which end for what they leave."""

from tests.harness.interaction import Script, play, scripts
from tests.harness.routing_script import routing


@scripts(__file__)
def test_script(script: Script) -> None:
    """What is asked of whom, what is fetched, and what is answered for without that."""
    play(script, routing)
