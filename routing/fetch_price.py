"""When a state is brought from the prefill node that holds it to the one that needs it, by way of a
decode node, instead of being computed there anew. Pure.

    copy = 2 x (fixed + each x tokens)       seconds; computing costs prefill of the same tokens

Of a pull, fixed and each are what the node that needs it has measured. It is paid twice, since the
bytes go to the decode node first. What of the first way is not lost is left out: the decode node
needs the KV in any case, and is not sent it again.
"""

from .prefill_seconds import PrefillSeconds

WAYS = 2


def copy_pays(
    usable: int,
    held: int,
    seconds: PrefillSeconds,
    pull: tuple[float, float] | None,
    at_least: int,
) -> bool:
    """usable: tokens whose state the node has that is to compute a prompt; held: the other one.
    pull: seconds of any and of each token; where they are not known, so many tokens are copied as
    are twice `at_least`."""
    tokens = held - usable
    if tokens <= 0:
        return False
    if pull is None:
        return tokens >= WAYS * at_least
    fixed, each = pull
    return WAYS * (fixed + each * tokens) < seconds.between(usable, held)
