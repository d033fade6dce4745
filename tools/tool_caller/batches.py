"""Training batches of the tool caller (a small model trained to make requested tool calls): their
content, and the training stage of each kind."""

import random
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer

from tasuki.server.text.rendering.compiled_template import CompiledTemplate
from tools.training.checkpoint import TURN_END, TURN_START

from .dialogue import Call, DialogueMaker, Render
from .shape import word_pieces

XML_TEMPLATES = ("qwen3_5_think", "qwen3_5_nothink", "qwen3_6", "qwen3_8")
_ROOT = Path(__file__).parents[2]
_TEMPLATES = _ROOT / "tests" / "harness" / "qwen_templates"


def texts() -> list[str]:
    """Return the texts (prose and code) providing the words of prompts."""
    files = (_TEMPLATES / "LICENSE", _ROOT / "model" / "embedded" / "held_out.txt")
    prose = [path.read_text(encoding="utf-8") for path in files]
    return [*prose, *map(template_source, XML_TEMPLATES)]


def passages() -> list[str]:
    """Return the texts of texts(), without the tokens at the start and end of a turn."""
    return [text.replace(TURN_START, "").replace(TURN_END, "") for text in texts()]


def words_of(found: Sequence[str]) -> list[str]:
    """Return the distinct words of the texts."""
    return sorted({word for text in found for word in re.findall("[A-Za-z]{3,9}", text)})


def template_source(name: str) -> str:
    return (_TEMPLATES / f"{name}.jinja").read_text(encoding="utf-8")


def by_template(name: str) -> Render:
    template = CompiledTemplate(template_source(name), {})

    def render(
        messages: Sequence[Mapping[str, Any]], tools: Sequence[Mapping[str, Any]], thinks: bool
    ) -> str:
        return template.text(messages, True, tools, {"enable_thinking": thinks})

    return render


def bare(
    messages: Sequence[Mapping[str, Any]], tools: Sequence[Mapping[str, Any]], thinks: bool
) -> str:
    """Render messages as a prompt, leaving out the tools. Has the type Render."""
    return "".join(map(_turn, messages)) + (
        "<|im_start|>assistant\n<think>\n" + ("" if thinks else "\n</think>\n\n")
    )


def _turn(message: Mapping[str, Any]) -> str:
    role, content = message["role"], message["content"]
    if role == "tool":
        role, content = "user", f"<tool_response>\n{content}\n</tool_response>"
    if role == "assistant":
        calls = (Call(**call["function"]).written() for call in message.get("tool_calls", ()))
        thought = message.get("reasoning_content", "")
        content = f"<think>\n{thought}\n</think>\n\n" + ("\n".join(calls) or content)
    return f"<|im_start|>{role}\n{content}<|im_end|>\n"


_SHORT_WORDS, _LONG_WORDS = 3, 8
_SHORT_UNTIL, _BARE_UNTIL = 0.15, 0.4
"""Shares of the first stage's steps. Before _SHORT_UNTIL argument values are short. Before
_BARE_UNTIL prompts have no chat template; afterwards half of the batches have one."""
_PLAIN_SHARE = {1: 0.5, 2: 0.1, 3: 0.15, 4: 0.15}
_FILLERS = {
    1: (2, 10, 30),
    2: (10, 20, 40, 80),
    3: (20, 60, 150, 250, 350),
    4: (20, 60, 150, 350, 650),
}
_TURNS = {1: 1, 2: 1, 3: 6, 4: 6}
"""Number of requests in a training text, by stage. In the third stage a prompt's tokens cost too
much for one request."""
_SHARED_NAMES = 12
"""Number of names shared by the parts of a fourth-stage prompt: its tools, their arguments, its
prose and its requests use them."""
_KINDS = {
    1: ("bare", "full"),
    2: ("bare", "long"),
    3: ("bare", "long", "longer"),
    4: ("bare", "long", "longer", "longest"),
}
_HELD_OUT_FILLER = {"bare": 0, "full": 10, "long": 60, "longer": 240, "longest": 650}
_HELD_OUT = {"bare": 24, "full": 24, "long": 24, "longer": 8, "longest": 4}
"""Number of held-out prompts by kind of prompt."""


@dataclass(frozen=True)
class Pair:
    """One training text. tokens: ids of the prompt, its answer and the turn's end, then the same
    for further turns. answers: range of each answer's tokens."""

    tokens: list[int]
    answers: tuple[range, ...]


class BatchMaker:
    def __init__(self, tokenizer: Tokenizer, seed: int, steps: int, room: int, stage: int) -> None:
        """Set up the batches. steps: number of this stage's steps. room: largest tokens of a batch,
        with padding. stage: kind of the prompts, 1 to 4. Second stage: like agents' prompts, with
        thousands of tokens, much of them prose and code. Third: up to tens of thousands of tokens,
        and values of the same words. Fourth: twice as many, and names at many places of a
        prompt."""
        self._tokenizer = tokenizer
        self._words = word_pieces(tokenizer)
        self._templates = tuple(map(by_template, XML_TEMPLATES))
        self._seed = seed
        self._steps = steps
        self._room = room
        self._stage = stage
        self._passages = passages() if stage > 1 else []
        self._real_words = words_of(self._passages)
        self._shared = range(_SHARED_NAMES if stage > 3 else 0)
        self.kinds = _KINDS[stage]

    def batch(self, step: int) -> list[Pair]:
        """Return the batch of a training step, determined by the seed and the step's number
        alone."""
        chooser = random.Random(f"{self._seed} {step}")
        maker = self._maker(chooser, self._passages)
        progress = step / self._steps if self._stage == 1 else 1.0
        plain = progress < _BARE_UNTIL or chooser.random() < _PLAIN_SHARE[self._stage]
        longest = _SHORT_WORDS if progress < _SHORT_UNTIL else _LONG_WORDS
        # One size for a batch: a long prompt would leave no space for others.
        of_batch = None if plain or self._stage == 1 else chooser.choice(_FILLERS[self._stage])
        pairs: list[Pair] = []
        width = 0
        while True:
            filler = of_batch or chooser.choice((0, 8) if plain else _FILLERS[1])
            render = bare if plain else chooser.choice(self._templates)
            pair = self._pair(maker, render, filler, longest, _TURNS[self._stage])
            if pairs and max(width, len(pair.tokens)) * (len(pairs) + 1) > self._room:
                return pairs
            width = max(width, len(pair.tokens))
            pairs.append(pair)

    def held_out(self, kind: str) -> list[Pair]:
        """Return the held-out training texts of a kind; no batch contains them."""
        among = passages() if kind in ("long", "longer", "longest") else []
        chooser = random.Random("held out")
        if kind in ("longer", "longest"):
            maker = self._maker(chooser, among)
        else:
            maker = DialogueMaker(self._words, chooser, among)
        renders = (bare,) if kind == "bare" else self._templates
        filler = _HELD_OUT_FILLER[kind]
        turns = _TURNS[3] if kind in ("longer", "longest") else 1
        return [
            self._pair(maker, renders[number % len(renders)], filler, _LONG_WORDS, turns)
            for number in range(_HELD_OUT[kind])
        ]

    def _maker(self, chooser: random.Random, among: Sequence[str]) -> DialogueMaker:
        if self._stage < 3:
            return DialogueMaker(self._words, chooser, among)
        words = self._real_words if chooser.random() < 0.6 else self._words
        folder = "".join(f"/{chooser.choice(words)}" for _ in range(chooser.randint(2, 5)))
        passage = f'The folder is {folder}. <cwd>{folder}</cwd> {{"root": "{folder}"}} {folder}/'
        names = ["_".join(chooser.choices(words, k=chooser.randint(1, 3))) for _ in self._shared]
        return DialogueMaker(words, chooser, [*among, passage], (folder, folder), names)

    def _pair(
        self, maker: DialogueMaker, render: Render, filler: int, longest: int, turns: int
    ) -> Pair:
        prompt, answer = maker.prompt_and_answer(render, filler, longest)
        end = self._tokenizer.token_to_id(TURN_END)
        tokens: list[int] = []
        answers: list[range] = []
        for turn in range(turns):
            if turn:
                prompt, answer = maker.next_turn(bare, longest)
                prompt = f"\n{prompt}"
            tokens += self._tokenizer.encode(prompt).ids
            begin = len(tokens)
            tokens += [*self._tokenizer.encode(answer).ids, end]
            answers.append(range(begin, len(tokens)))
        return Pair(tokens, tuple(answers))
