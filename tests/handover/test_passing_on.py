"""Scripts of a decode node that asks ending prefill nodes for the states they leave."""

from tests.harness.interaction import Script, play, scripts
from tests.harness.routing_script import routing


@scripts(__file__)
def test_script(script: Script) -> None:
    """States are requested from the right nodes, fetched, or answered without a fetch."""
    play(script, routing)
