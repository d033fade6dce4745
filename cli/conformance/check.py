"""A check by its name, and its row once it was run."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from .caller import Caller
from .endpoint import EndpointError
from .outcome import Departure, Outcome, Row, Unserved

Run = Callable[[Caller], Awaitable[None]]


@dataclass(frozen=True)
class Check:
    """name: the rule, as the table shows it."""

    name: str
    run: Run

    async def row(self, api: str, caller: Caller) -> Row:
        """api: that the row names."""
        try:
            await self.run(caller)
        except (Departure, EndpointError) as departure:
            return Row(api, self.name, Outcome.FAILED, str(departure))
        except Unserved as unserved:
            return Row(api, self.name, Outcome.SKIPPED, str(unserved))
        except (LookupError, TypeError, AttributeError) as error:
            # Replies are read as their APIs have them: what has no such place is another shape.
            note = f"the reply cannot be read: {type(error).__name__} {error}"
            return Row(api, self.name, Outcome.FAILED, note)
        return Row(api, self.name, Outcome.PASSED)
