"""What callers see of a node's load: enough to choose between nodes, and little of what others ask.

Pure.
"""

import math

from tasuki.engine.messages import LoadReply
from tasuki.proto import inference_pb2 as pb

_STEPS = 16


def load_to_proto(load: LoadReply) -> pb.SessionLoadResponse:
    response = pb.SessionLoadResponse(
        busy=math.ceil(_STEPS * load.in_flight / load.places) / _STEPS,
        free_kv=math.floor(_STEPS * load.free_kv) / _STEPS,
        draining=load.draining,
    )
    if load.step_seconds is not None:
        response.step_seconds = float(f"{load.step_seconds:.2g}")
    return response
