"""The prompts accepted by an engine: within the limits of the model and the arena, until a drain.

Thread rule: the engine loop's, except max_request_tokens.
"""

from dataclasses import dataclass

import numpy as np

from tasuki.model.ops.sampling.params import MAX_TOP_LOGPROBS, SamplingParams
from tasuki.model.vision.prompt_positions import PicturePlaceError
from tasuki.pycache.keys import Keys, PromptTokens, has_pictures, same_tokens
from tasuki.pycache.prefix_cache import HybridPrefixCache

from . import messages as m
from .pictures.handed import handed_pictures, unseen_pictures
from .pictures.placed import PictureShape, PlacedPictures, placed_pictures

MAX_PROMPT_SCORES = 1 << 18
"""Most logprobs reported for one prompt: for its own tokens and the likeliest alternatives. They
take about 20 MB as JSON."""


_BLIND = (
    "prompt has pictures, and this node sees none: serve a checkpoint with a vision tower, with "
    "--vision auto"
)


@dataclass(frozen=True)
class PromptLimits:
    """Limits of a prompt. max_position and vocab_size are the model's. working_slots: slots of a
    request in the arena besides its pages. pictures: accepted ones; None: none are."""

    max_position: int
    vocab_size: int
    working_slots: int
    pictures: PictureShape | None = None


class Intake:
    def __init__(self, cache: HybridPrefixCache, limits: PromptLimits, emit: m.Emit) -> None:
        self._cache = cache
        self._limits = limits
        self._emit = emit
        self._draining = False
        self._drains: list[int] = []

    @property
    def max_request_tokens(self) -> int:
        """Return the most tokens of prompt and answer together allowed by the model and the arena.
        Any thread may call it."""
        return min(
            self._limits.max_position, self._cache.capacity_tokens(self._limits.working_slots)
        )

    def is_token(self, token: int) -> bool:
        """Return whether the model has an embedding for the token. On a GPU any other id would end
        the process."""
        return 0 <= token < self._limits.vocab_size

    @property
    def draining(self) -> bool:
        return self._draining

    def refusal(self, prompt: m.Tokens, final_length: int) -> m.RequestError | None:
        """Return the error to reject a prompt with, including one for a draining node; None to
        accept it. final_length: most tokens ever forwarded for it."""
        if self._draining:
            return m.RequestError(m.ErrorKind.DRAINING, "this node is draining; try another")
        return self.misfit(prompt, final_length)

    def misfit(self, prompt: m.Tokens, final_length: int) -> m.RequestError | None:
        """Return the error for a prompt this engine can never serve: empty, with unknown tokens, or
        too long. Return None if it can. final_length: most tokens ever forwarded for it."""
        if len(prompt) == 0:
            return _invalid("prompt is empty: send at least one token")
        if not (self.is_token(int(prompt.min())) and self.is_token(int(prompt.max()))):
            return _invalid(f"prompt holds a token outside [0, {self._limits.vocab_size})")
        limit = self.max_request_tokens
        if final_length > limit:
            return m.RequestError(
                m.ErrorKind.TOO_LONG,
                f"prompt of {len(prompt)} tokens with its answer needs {final_length}, "
                f"but at most {limit} fit: shorten the prompt or ask for fewer tokens",
            )
        return None

    def state_misfit(self, keys: Keys) -> m.RequestError | None:
        """Return the error for a state this engine can never hold, else None. keys: of its tokens;
        those of pictures are negative, and fit only a node that sees."""
        if self._limits.pictures is None:
            return self.misfit(keys, len(keys))
        return self.misfit(np.maximum(keys, 0), len(keys))

    @property
    def sees_pictures(self) -> bool:
        """Return True if prompts may have pictures. Any thread."""
        return self._limits.pictures is not None

    def placed(self, submit: m.Submit) -> PlacedPictures | m.RequestError | None:
        """Return the prompt's pictures, or the reason to reject it, also if this engine takes none.
        Return None for a prompt of text."""
        shape = self._limits.pictures
        if shape is None:
            return _invalid(_BLIND) if submit.pictures else None
        files = (file for picture in submit.pictures for file in picture.files)
        absence = next(filter(None, (file.data.absence for file in files)), None)
        if absence is not None:
            return m.RequestError(
                m.ErrorKind.OVERLOADED, f"a picture did not arrive ({absence}); ask again"
            )
        try:
            return placed_pictures(submit, shape)
        except PicturePlaceError as error:
            return _invalid(f"prompt: {error}")

    def handed(
        self, message: m.PrefillReserve
    ) -> tuple[PromptTokens, PlacedPictures | None] | m.RequestError:
        """Return the tokens of a peer's prompt and its pictures, None for text; or the reason to
        reject it. A state's keys may come without their pictures, if the rest is one token."""
        keys, shape = message.prompt, self._limits.pictures
        if not (message.pictures or has_pictures(keys)):
            return same_tokens(keys), None
        if shape is None:
            return _invalid(_BLIND)
        if not message.pictures and is_copy(message):
            return unseen_pictures(keys, shape)
        try:
            return handed_pictures(keys, message.pictures, shape)
        except PicturePlaceError as error:
            return _invalid(f"prompt: {error}")

    def scoring_refusal(self, prompt: m.Tokens, top: int | None) -> m.RequestError | None:
        """Return the error for a prompt impossible to score; None if it can be scored. top:
        likeliest tokens to report with each of its tokens; None: no scoring, never rejected."""
        if top is None:
            return None
        if not 0 <= top <= MAX_TOP_LOGPROBS:
            return _invalid(f"prompt_logprobs must be in [0, {MAX_TOP_LOGPROBS}], not {top}")
        if len(prompt) * (top + 1) > MAX_PROMPT_SCORES:
            return m.RequestError(
                m.ErrorKind.TOO_LONG,
                f"prompt_logprobs {top} of a prompt of {len(prompt)} tokens are over "
                f"{MAX_PROMPT_SCORES} numbers: ask for fewer, or shorten the prompt",
            )
        return None

    def prediction_refusal(self, prediction: m.Tokens) -> m.RequestError | None:
        """Return an error if the request's prediction (source of drafts) has a token outside the
        vocabulary, else None. Drafts go through the model like a prompt."""
        if not len(prediction):
            return None
        if self.is_token(int(prediction.min())) and self.is_token(int(prediction.max())):
            return None
        return _invalid(f"prediction holds a token outside [0, {self._limits.vocab_size})")

    def sampling_refusal(self, sampling: SamplingParams) -> m.RequestError | None:
        """Return the error if a logit adjustment names a token outside the vocabulary, else None.
        On a GPU this would end the process."""
        for field, tokens in sampling.named_tokens.items():
            outside = [token for token in tokens if not self.is_token(token)]
            if outside:
                return _invalid(
                    f"{field} names token {outside[0]}, which is outside the vocabulary: use ids "
                    f"in [0, {self._limits.vocab_size})",
                )
        return None

    def handle(self, message: m.Drain | m.Undrain) -> None:
        match message:
            case m.Drain(query_id):
                self._draining = True
                self._drains.append(query_id)
            case m.Undrain():
                self._draining = False
                self._answer(at_rest=False)

    def at_rest(self) -> None:
        """Answer pending drains, if there are any, because no request is left."""
        if self._drains:
            self._answer(at_rest=True)

    def _answer(self, *, at_rest: bool) -> None:
        for query_id in self._drains:
            self._emit(m.Drained(query_id, at_rest))
        self._drains.clear()


def is_copy(message: m.PrefillReserve) -> bool:
    """Return True if the transfer brings a state: one token behind it is asked for."""
    asked = message.transfer_request
    return asked.sampling.max_new_tokens == 1 and asked.offered == len(message.prompt) - 1


def _invalid(reason: str) -> m.RequestError:
    return m.RequestError(m.ErrorKind.INVALID, reason)
