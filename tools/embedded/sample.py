"""Prints answers of a trained model folder to a few fixed chats, for a reader to judge.

Uses transformers, not this project's engine, because this judges only the training.
"""

import json
import sys
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer
from transformers import Qwen3_5ForCausalLM

from tools.training.checkpoint import TURN_END, TURN_START

_CHATS = (
    ("Mr. Darcy walked into the room, and Elizabeth looked up from her letter.",),
    ("Tell me something of the weather and the roads.",),
    (
        "My dear friend, I have read the report which you sent me this morning. It says that the "
        "carriage was late, that the horses were tired, and that nobody at the inn could say when "
        "the next would come. What shall we do?",
    ),
    ("She was resolved to refuse him.", "And what did her mother say to that?"),
)
_NEW_TOKENS = 128


def sample(directory: Path, temperatures: tuple[float, ...] = (0.0, 0.8)) -> list[dict[str, Any]]:
    """Return one record for each chat and temperature: the turns, the seed, and True if the last
    answer ended."""
    device = "cuda" if torch.cuda.is_available() else "cpu"
    tokenizer = Tokenizer.from_file(str(directory / "tokenizer.json"))
    model = Qwen3_5ForCausalLM.from_pretrained(directory, dtype=torch.float32).to(device).eval()
    found = []
    for temperature in temperatures:
        for chat in _CHATS:
            torch.manual_seed(1)
            text, turns = "", []
            ended = False
            for user in chat:
                text += f"{TURN_START}user\n{user}{TURN_END}\n{TURN_START}assistant\n"
                ids = tokenizer.encode(text).ids
                out = model.generate(
                    torch.tensor([ids], device=device),
                    max_new_tokens=_NEW_TOKENS,
                    **({"do_sample": True, "temperature": temperature} if temperature else _GREEDY),
                )[0, len(ids) :].tolist()
                ended = out[-1] == tokenizer.token_to_id(TURN_END)
                answer = tokenizer.decode(out)
                turns += [{"user": user}, {"assistant": answer}]
                text += f"{answer}{TURN_END}\n"
            found.append({"temperature": temperature, "turns": turns, "ended": ended})
    return found


_GREEDY = {"do_sample": False, "temperature": None, "top_p": None, "top_k": None}

if __name__ == "__main__":
    print(json.dumps(sample(Path(sys.argv[1])), indent=2))
