"""A call that may hang, with a bound."""

import threading
from collections.abc import Callable
from typing import TypeVar

Found = TypeVar("Found")


def within(seconds: float, call: Callable[[], Found], late: OSError) -> Found:
    """Raises what the call raises, and `late` where it has not ended by then: then it hangs a
    thread of nobody."""
    found: list[Found] = []
    errors: list[BaseException] = []

    def run() -> None:
        try:
            found.append(call())
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=run, name="tasuki-probe", daemon=True)
    thread.start()
    thread.join(seconds)
    if errors:
        raise errors[0]
    if not found:
        raise late
    return found[0]
