"""Whether a checkpoint's weights could be read, by the headers of its files alone: what is missing,
what nobody would read, how they are stored, and whether this machine's GPU multiplies that."""

from pathlib import Path

import torch

from tasuki.model.config import ModelConfig
from tasuki.model.config_fields import ModelConfigError
from tasuki.model.known_models import with_draft_layer
from tasuki.model.weights.files.stored_tensors import StoredShapes
from tasuki.model.weights.layers import assemble, tensors
from tasuki.model.weights.part import WeightsError
from tasuki.model.weights.safetensors_folder import Checkpoint, check_kernels

from .finding import Finding, failure, ok

_GIB = 2**30


def weights(folder: str) -> Finding:
    try:
        model = with_draft_layer(ModelConfig.load(folder), folder, "auto")
        with Checkpoint(Path(folder), StoredShapes) as stored:
            found = assemble(model, stored, torch.bfloat16, "meta")
            stored.check_left_over(drafts=model.draft_layers > 0)
            count = len(stored)
        if torch.cuda.is_available():
            check_kernels(folder, torch.device("cuda"))
    except (WeightsError, ModelConfigError) as error:
        return failure("weights", str(error), "mend the folder, or give another one")
    size = sum(tensor.nbytes for tensor in tensors(found)) / _GIB
    drafts = "with a draft layer" if model.draft_layers else "without a draft layer"
    return ok("weights", f"{count} tensors, {size:.2f} GiB as {found.formats}, {drafts}")
