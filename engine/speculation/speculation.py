"""Which requests of a node are drafted, and from what."""

from tasuki.engine import messages as m
from tasuki.engine.forward_plan import Ints

from .chances import Chances
from .drafter import Drafter, DraftSource
from .drafting import Drafting
from .grammar_drafter import AllowedDrafter, AnswerGrammar, ForcedDrafter, Grammars
from .mtp_drafter import MtpDrafter
from .prediction import PredictionDrafter
from .suffix_index import ANCHOR_TOKENS, SuffixIndex
from .tree_drafter import TreeDrafter

_LEFT_TOKENS = 1 << 19
"""Of ended requests that the tree drafter looks through: 18 MiB."""


class Speculation:
    """Owns what ended requests left for drafts of others, where `from_tree`. Thread rule: the
    engine loop's."""

    def __init__(
        self,
        draft_tokens: int = 0,
        *,
        from_tree: bool = False,
        by_layer: bool = False,
        grammars: Grammars | None = None,
    ) -> None:
        """draft_tokens: of a forward and request at most; 0: nothing is drafted. from_tree,
        by_layer: also of requests that say nothing of their answers, the latter by the model's
        draft layer. grammars: that answers may be under; None: none is."""
        self._draft_tokens = draft_tokens
        self._grammars = grammars
        self._by_layer = by_layer
        self._chances = {source: Chances() for source in DraftSource}
        """Of all requests that are drafted from it before all else."""
        self._left = SuffixIndex(_LEFT_TOKENS) if draft_tokens and from_tree else None

    def drafting(self, message: m.Submit) -> Drafting | None:
        """Of its answer; None where nothing can be drafted."""
        drafters: list[Drafter] = []
        if len(message.prediction):
            drafters.append(PredictionDrafter(message.prediction))
        # What a grammar allows the layer does not see.
        mtp = MtpDrafter() if self._by_layer and message.sampling.grammar is None else None
        if self._left is not None:
            most = message.sampling.max_new_tokens
            # Before the layer, since it costs nothing and may be right for longer; but as long as
            # it was wrong last, the layer drafts.
            least = 1 if mtp is None else 2
            drafters.append(TreeDrafter(message.prompt, message.salt, most, self._left, least))
        if mtp is not None:
            drafters.append(mtp)
        if message.sampling.grammar is not None and self._grammars is not None:
            grammar = AnswerGrammar(message.sampling.grammar, self._grammars)
            drafters = [AllowedDrafter(drafter, grammar) for drafter in drafters]
            drafters.append(ForcedDrafter(grammar))
        if not drafters or not self._draft_tokens:
            return None
        prior = self._chances[drafters[0].source]
        return Drafting(drafters, self._draft_tokens, mtp, prior)

    @property
    def remembers(self) -> bool:
        """Whether others may find what a request leaves."""
        return self._left is not None

    def ended(self, tokens: Ints, salt: bytes, known: int) -> None:
        """A request's prompt and answer, which others may find. known: how many of the first were
        there before. REQUIRES: it remembers."""
        assert self._left is not None
        self._left.begin(salt)
        self._left.append(tokens[max(0, known - ANCHOR_TOKENS) :])
