"""Computes the reference answers with transformers: its own PyTorch path, float32, one thread,
eager attention.

Owns the model of one shape. Arrays have the names read by tests/harness/goldens.py. A convolution's
state is the last three inputs, because no step reads the fourth again.
"""

import importlib.util
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from tools.goldens.shapes import Case, Shape
from tools.goldens.weights import random_weights

MARGIN = 0.05
"""Least difference of the two largest logits at every step, so another order of sums does not
change the choice."""

Arrays = dict[str, NDArray[np.float32]]


@dataclass(frozen=True)
class Answer:
    greedy: list[int]
    margin: float
    arrays: Arrays


class Reference:
    def __init__(self, shape: Shape) -> None:
        for kernels in ("fla", "causal_conv1d"):
            if importlib.util.find_spec(kernels) is not None:
                raise RuntimeError(f"{kernels} is installed: transformers would take its kernels")
        torch.set_num_threads(1)
        torch.use_deterministic_algorithms(True)
        torch.backends.mkldnn.enabled = False
        self._model = _model(shape)
        sizes = {name: tuple(item.shape) for name, item in self._model.state_dict().items()}
        if shape.text["tie_word_embeddings"]:
            sizes.pop("lm_head.weight")
        self.weights = random_weights(shape, sizes)
        wide = {name: tensor.float() for name, tensor in self.weights.items()}
        missing, unknown = self._model.load_state_dict(wide, strict=False)
        assert not unknown and set(missing) <= {"lm_head.weight"}, (missing, unknown)
        self._model.tie_weights()

    @torch.inference_mode()
    def answer(self, case: Case, prompt: list[int]) -> Answer | None:
        """Return transformers' greedy answer to a prompt of the case. Returns None if a step nearly
        ties, or if one token makes up most of the answer."""
        arrays: Arrays = {}
        with self._watched(arrays if case.hidden else {}):
            first = self._forward(prompt, None)
        logits = first.logits[0]
        if case.hidden:
            arrays["logits"] = _array(logits)
        arrays["last_logits"] = _array(logits[-1])
        greedy, margin, cache = [], float("inf"), first.past_key_values
        if len(prompt) in case.states_at:
            arrays |= self._states(cache, f"at{len(prompt)}", len(prompt))
        row = logits[-1]
        for _ in range(case.steps):
            best = row.topk(2)
            margin = min(margin, float(best.values[0] - best.values[1]))
            greedy.append(int(best.indices[0]))
            if margin < MARGIN:
                return None
            row = self._forward([greedy[-1]], cache).logits[0, -1]
        if max(greedy.count(token) for token in greedy) > case.steps // 2:
            return None
        if case.end:
            arrays |= self._states(cache, "end", len(prompt) + case.steps)
        for tokens in case.states_at:
            if tokens < len(prompt):
                part = self._forward(prompt[:tokens], None).past_key_values
                arrays |= self._states(part, f"at{tokens}", None)
        return Answer(greedy, margin, arrays)

    @torch.inference_mode()
    def logits(self, prompt: list[int]) -> NDArray[np.float32]:
        """Return logits [tokens, vocab] of a forward over the prompt."""
        return _array(self._forward(prompt, None).logits[0])

    def _forward(self, tokens: list[int], cache: Any) -> Any:
        ids = torch.tensor([tokens])
        return self._model(input_ids=ids, past_key_values=cache, use_cache=True)

    def _states(self, cache: Any, prefix: str, tokens: int | None) -> Arrays:
        """Return the cache content of all layers, by names beginning with `prefix`. tokens: number
        of tokens with stored KV; None: no KV."""
        found: Arrays = {}
        for layer, kind in enumerate(self._model.config.layer_types):
            held, name = cache.layers[layer], f"{prefix}.layer{layer}"
            if kind == "linear_attention":
                found[f"{name}.conv"] = _array(held.conv_states[0][0, :, -3:])
                found[f"{name}.recurrent"] = _array(held.recurrent_states[0][0])
            elif tokens is not None:
                found[f"{name}.key"] = _array(held.keys[0, :, :tokens])
                found[f"{name}.value"] = _array(held.values[0, :, :tokens])
        return found

    @contextmanager
    def _watched(self, arrays: Arrays) -> Iterator[None]:
        """Store the outputs of each layer and of the last norm in `arrays` during a block."""

        def keep(name: str) -> Any:
            def hook(module: nn.Module, given: object, out: Any) -> None:
                out = out[0] if isinstance(out, tuple) else out
                arrays[f"hidden.{name}"] = _array(out[0])

            return hook

        text = self._model.model
        named = {f"layer{index}": layer for index, layer in enumerate(text.layers)}
        hooks = [
            module.register_forward_hook(keep(name))
            for name, module in (named | {"final_norm": text.norm}).items()
        ]
        try:
            yield
        finally:
            for hook in hooks:
                hook.remove()


def rotary_angles(
    shape: Shape, positions: Tensor
) -> tuple[NDArray[np.float32], NDArray[np.float32], NDArray[np.float32]]:
    """Return the rotary frequencies in radians a position [pairs], and the cosines and sines
    [positions, pairs]. REQUIRES: the shape is dense."""
    from transformers.models.qwen3_5.modeling_qwen3_5 import Qwen3_5TextRotaryEmbedding

    rotary = Qwen3_5TextRotaryEmbedding(_config(shape))
    # One position for each token, in time, height and width alike.
    cos, sin = rotary(torch.zeros(1), positions.expand(3, 1, -1))
    pairs = len(rotary.inv_freq)
    return _array(rotary.inv_freq), _array(cos[0, :, :pairs]), _array(sin[0, :, :pairs])


def _model(shape: Shape) -> Any:
    if shape.moe:
        from transformers import Qwen3_5MoeForCausalLM as Model
    else:
        from transformers import Qwen3_5ForCausalLM as Model
    model = Model(_config(shape)).float()
    model.eval()
    return model


def _config(shape: Shape) -> Any:
    if shape.moe:
        from transformers import Qwen3_5MoeTextConfig as Config
    else:
        from transformers import Qwen3_5TextConfig as Config
    return Config(**{**shape.text, "dtype": "float32"}, attn_implementation="eager")


def _array(tensor: Tensor) -> NDArray[np.float32]:
    copied: NDArray[np.float32] = np.ascontiguousarray(tensor.float().numpy()).copy()
    return copied
