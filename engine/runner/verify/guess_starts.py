"""Behind what drafts are guessed, and how many drafts of a row held: on the device, since the host
learns of neither before the guess is launched. Pure."""

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class GuessStarts:
    """Of n rows: the token drawn last, int32; the model's final hidden state of the token before it
    [n, width]; by how many positions further it stands than a row without drafts has it, int32."""

    tokens: Tensor
    hidden: Tensor
    further: Tensor

    @staticmethod
    def behind(drawn: Tensor, ids: Tensor, counts: Tensor, hidden: Tensor) -> "GuessStarts":
        """Of rows with drafts. ids [n, T]: a token and drafts, of which counts [n] mean something;
        drawn [n, T]: behind each of these; hidden [n, T, width]: of each."""
        held = accepted(drawn, ids, counts)
        row = torch.arange(len(held), device=held.device)
        return GuessStarts(drawn[row, held], hidden[row, held], held.int())

    def take(self, rows: Tensor) -> "GuessStarts":
        """rows [m] int64."""
        return GuessStarts(self.tokens[rows], self.hidden[rows], self.further[rows])

    def put(self, places: Tensor, starts: "GuessStarts") -> None:
        """Those of the rows at `places` [m] int64."""
        self.tokens.index_copy_(0, places, starts.tokens)
        self.hidden.index_copy_(0, places, starts.hidden)
        self.further.index_copy_(0, places, starts.further)


def accepted(drawn: Tensor, ids: Tensor, counts: Tensor) -> Tensor:
    """[n] int64: how many drafts of each row are what was drawn before them, up to the first that
    is not. As for GuessStarts.behind()."""
    drafts = torch.arange(1, ids.shape[1], device=ids.device)
    holds = (drawn[:, :-1] == ids[:, 1:]) & (drafts < counts[:, None])
    return holds.long().cumprod(1).sum(1)
