"""What a forward has drawn, counted for the requests that it was drawn for.

Owns nothing. Thread rule: the engine loop's. Invariant: of a request that is over, or whose logits
were not finite, nothing counts.
"""

from collections.abc import Sequence

import numpy as np

from tasuki.engine.forward_plan import Fold
from tasuki.engine.handover.answers import all_sound, unsound
from tasuki.engine.handover.base import Handover
from tasuki.engine.plan_stream import PlanStream
from tasuki.engine.runner.drawn_tokens import DrawnTokens
from tasuki.engine.scheduling.scheduled_forward import AnswerRows, ScheduledForward
from tasuki.engine.scheduling.scheduled_sequence import ScheduledSequence
from tasuki.engine.scheduling.scheduler import Scheduler
from tasuki.engine.speculation.drafting import Drafting
from tasuki.model.ops.sampling.prompt_scores import PromptScores
from tasuki.model.ops.sampling.reference import Sampled
from tasuki.pycache.prefix_cache import HybridPrefixCache


class Landing:
    def __init__(
        self,
        cache: HybridPrefixCache,
        plans: PlanStream,
        scheduler: Scheduler,
        handover: Handover,
    ) -> None:
        self._cache = cache
        self._plans = plans
        self._scheduler = scheduler
        self._handover = handover

    def commit(self, forward: ScheduledForward, drawn: DrawnTokens) -> None:
        """The forward has ended; this is what its rows drew."""
        count = len(forward.answers)
        if count:
            self._answers(forward.answers, drawn.take(slice(count)))
        if forward.drafted:
            self._drafted(forward.drafted, drawn, count)
            count += len(forward.drafted)
        for row, item in enumerate(forward.prompts, count):
            if item.live:
                sampled = drawn.at(row) if item.num_sampled else None
                if item.guesses and item.request.drafting is not None:
                    _guessed(item.request.drafting, drawn, row, len(item.request.output) + 1)
                self._prompt(item, sampled, drawn.scores.get(row))

    def _answers(self, answers: AnswerRows, drawn: DrawnTokens) -> None:
        """Of rows whose requests are over nothing counts: what was drawn is behind the end."""
        progress, sound = self._scheduler.progress, drawn.sound
        live = answers.live(progress)
        for request in answers.requests_where(live & ~sound):
            self._handover.reject(request, unsound(request))
        counts = live & sound
        if not counts.all():
            rows = counts.nonzero()[0]
            answers, drawn = answers.take(rows), drawn.take(rows)
        progress.land_next(answers.lanes, answers.tokens)
        self._scheduler.running.acquit(answers.requests)
        self._handover.on_tokens(answers, drawn)

    def _drafted(
        self, drafted: Sequence[ScheduledSequence], drawn: DrawnTokens, first: int
    ) -> None:
        """Of each row count the tokens up to the answer's end. first: the first one's row."""
        counted: list[tuple[ScheduledSequence, list[Sampled]]] = []
        for row, item in enumerate(drafted, first):
            if not item.live:
                continue
            request, found = item.request, drawn.all_at(row)
            tokens = found[: self._handover.until_end(request, found)]
            if not all_sound(tokens):
                self._handover.reject(request, unsound(request))
                continue
            assert request.drafting is not None
            if item.drafts:
                request.drafting.verified(len(item.drafts), min(len(found) - 1, len(tokens)))
            _guessed(request.drafting, drawn, row, len(request.output) + len(tokens))
            item.active.progress.land_drafted(item.start + len(tokens), item.write_index)
            counted.append((item, tokens))
        folds = tuple(Fold(item.lane, len(tokens)) for item, tokens in counted if item.drafts)
        if folds:
            self._plans.fold(folds)
        self._scheduler.running.acquit([item.request for item, _ in counted])
        for item, tokens in counted:
            for token in tokens:
                self._handover.on_token(item.request, token)

    def _prompt(
        self, item: ScheduledSequence, sampled: Sampled | None, scores: PromptScores | None
    ) -> None:
        """REQUIRES: it is live."""
        request, allocation = item.request, item.active.allocation
        request.suspect = False
        drawn_unsoundly = sampled is not None and not all_sound([sampled])
        if drawn_unsoundly or (scores is not None and not np.isfinite(scores.logprobs).all()):
            self._handover.reject(request, unsound(request))
            return
        item.active.progress.land(item.stop, item.write_index, item.num_sampled)
        for planned, slot in item.checkpoints:
            self._cache.insert_midway(allocation, planned.position, slot, planned.kind)
        if scores is not None:
            self._handover.on_scores(request, item.start, scores)
        if sampled is not None:
            self._handover.on_token(request, sampled)
        elif item.stop == request.length and not request.sampling.draws:
            self._handover.on_prompt_end(request)


def _guessed(drafting: Drafting, drawn: DrawnTokens, row: int, behind: int) -> None:
    """So many tokens of the answer stand before what the draft layer proposes of the row."""
    if row in drawn.on_lane:
        drafting.left_on_lane(drawn.on_lane[row], behind)
    else:
        drafting.guessed(drawn.guessed.get(row, ()), behind)
