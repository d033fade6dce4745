"""What a prefill node finds less of where an answer's state has not come back to it. Pure.

A state stands behind an answer's last token but one, if the answer came back, and else at the last
page's end inside the prompt: then the next turn computes the tokens between.
"""

from tasuki.bench.load.client.loads import Agents
from tasuki.pycache.layout import PAGE_TOKENS


def continued_turns(agents: Agents) -> int:
    """Those whose answer a later one continues."""
    return agents.sessions * (agents.turns - 1)


def tokens_behind_answers(agents: Agents) -> int:
    """That all continued turns together find only if every answer came back."""
    a_session = 0
    for turn in range(agents.turns - 1):
        prompt = agents.prefix + agents.turn + turn * (agents.turn + agents.answer)
        a_session += prompt + agents.answer - 1 - (prompt - 1) // PAGE_TOKENS * PAGE_TOKENS
    return agents.sessions * a_session


def tokens_not_returned(agents: Agents, returned: int) -> float:
    """Of so many answers that came back, in the mean over which ones they were."""
    return tokens_behind_answers(agents) * (1 - returned / continued_turns(agents))
