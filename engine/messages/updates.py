"""Messages about pauses and updates of the weights, with their replies."""

from enum import StrEnum

from .types import Message, RequestError

START_VERSION = "default"
"""Version of the weights that a node started with, as SGLang names it."""


class PauseMode(StrEnum):
    """The effect of a pause on requests in flight. Later requests wait in every mode.

    ABORT: end them, as their clients could. WAIT: let requests with memory end. RETRACT: take their
    memory back; they go on later from a prefill of all their tokens. KEEP: stop them between two
    tokens; they go on over their earlier KV and states."""

    ABORT = "abort"
    WAIT = "wait"
    RETRACT = "retract"
    KEEP = "keep"


class PauseAnswers(Message):
    """Pause all requests until ResumeAnswers. Answered once no forward runs. In a pause, another
    mode takes the place of the first."""

    query_id: int
    mode: PauseMode


class ResumeAnswers(Message):
    """Go on after a pause. Without a pause, only an answer follows."""

    query_id: int


class UpdateWeights(Message):
    """Replace the weights by those of a checkpoint folder, all of them or none.

    mode: of the update's own pause, from staged to committed weights, if no pause is in force.
    version: for answers; empty: made from the weights' digest."""

    query_id: int
    folder: str
    mode: PauseMode
    version: str = ""


class AnswersPaused(Message):
    """The answer to PauseAnswers and ResumeAnswers. requests: number of requests not over."""

    query_id: int
    requests: int


class WeightsUpdated(Message):
    """The answer to UpdateWeights. error: why the weights are as before; None: they are updated.
    version: of the weights in use. names: beginning of the tree's salts for their states.
    requests: number of those paused by the update."""

    query_id: int
    version: str
    names: bytes
    requests: int = 0
    error: RequestError | None = None


class WeightsChanged(Message):
    """The weights have changed, and all requests are paused. Answered by LinksClosed, once no link
    from before the change takes a transfer. files, tensors: their digests. names: beginning of the
    tree's salts for their states."""

    files: str
    tensors: str
    names: bytes


class LinksClosed(Message):
    """No link to a node with the weights of before takes a transfer any more."""


class WeightsRun(Message):
    """The tokens of an answer drawn with one version of the weights, from token `first` on."""

    first: int
    version: str
