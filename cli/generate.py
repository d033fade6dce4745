"""`tasuki generate`: answers to prompts. The command starts the daemons for the answers, then stops
them."""

import json
import sys
from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, get_args

from tasuki.engine.config import SpeculateName
from tasuki.model.named_checkpoints import embedded_model
from tasuki.utils.flags import parse_config
from tasuki.utils.options import option

if TYPE_CHECKING:
    from tasuki.client.prompt import Prompt, SamplingOptions


class PromptFileError(ValueError):
    """A file of --prompt-ids, --prediction or --image cannot be used; the message names the cause
    and the fix."""


@dataclass(frozen=True)
class GenerateConfig:
    model: str = option("", "folder of a checkpoint; the embedded one if empty", argument="MODEL")
    prompt: str | None = option(None, "one prompt as text")
    image: str = option("", "picture files, separated by commas; with the prompt they are a chat")
    prompt_ids: str | None = option(None, "JSON file: a list of token-id lists, run concurrently")
    max_new_tokens: int = option(64, "tokens of an answer at most")
    dtype: str = option(
        "auto",
        "weights, activations and cache; auto: as of tasuki serve",
        ("auto", "float32", "bfloat16"),
    )
    kv_dtype: str = option("auto", "keys and values in pages", ("auto", "bf16", "fp8"))
    temperature: float = option(0.0, "0 is greedy")
    top_k: int = option(0, "0 keeps every token")
    top_p: float = option(1.0, "1 keeps every token")
    seed: int = option(0, "seed of the sampling noise")
    ignore_eos: bool = option(False, "end tokens do not stop an answer")
    arena_mib: int = option(512, "KV pages and state slots of each daemon, MiB")
    speculate: str = option("auto", "source of drafts", get_args(SpeculateName))
    drafter: str = option("", "folder of a block drafter (DFlash) of the model")
    draft_tokens: int = option(4, "drafts of a step and answer at most")
    draft_count: str = option(
        "most",
        "most: always draft_tokens, for equal counts in each run; measured: only as many "
        "as save time",
        ("measured", "most"),
    )
    tensor_parallel: int = option(
        1, "ranks of the daemon", aliases=("--tensor-parallel-size", "--tp-size")
    )
    expert_parallel: bool = option(
        False, "experts are whole, each on a rank", aliases=("--enable-expert-parallel",)
    )
    prefill_tensor_parallel: int | None = option(
        None, "ranks of the prefill daemon; by default as many as of the other"
    )
    prediction: str | None = option(
        None, "JSON file with a list of token ids for each prompt; answers are drafted from it"
    )
    disaggregated: bool = option(False, "through a prefill and a decode daemon")
    ids: bool = option(False, "print the ids of an answer's tokens under its text")
    json: bool = option(False, "print a list of objects with token_ids, text and usage")

    def __post_init__(self) -> None:
        if (self.prompt is None) == (self.prompt_ids is None):
            raise ValueError("give either --prompt TEXT or --prompt-ids FILE.json")
        if self.image and (self.prompt is None or self.disaggregated):
            raise ValueError("--image needs --prompt TEXT, and one daemon: no --disaggregated")
        if self.prefill_tensor_parallel is not None and not self.disaggregated:
            raise ValueError(
                "--prefill-tensor-parallel needs a prefill daemon: add --disaggregated"
            )
        if self.expert_parallel and self.tensor_parallel == self.prefill_ranks == 1:
            raise ValueError(
                "--expert-parallel shares experts out among ranks: give --tensor-parallel too"
            )

    def daemon_flags(self) -> list[str]:
        return [
            *("--model", self.model or str(embedded_model())),
            *("--dtype", self.dtype),
            *("--kv-dtype", self.kv_dtype),
            *("--arena-mib", str(self.arena_mib)),
            *("--speculate", self.speculate),
            *(("--drafter", self.drafter) if self.drafter else ()),
            *("--draft-tokens", str(self.draft_tokens)),
            *("--draft-count", self.draft_count),
        ]

    @property
    def prefill_ranks(self) -> int:
        given = self.prefill_tensor_parallel
        return self.tensor_parallel if given is None else given

    def rank_flags(self, ranks: int) -> list[str]:
        """Return the flags of a daemon with `ranks` ranks (processes computing one model)."""
        by_expert = self.expert_parallel and ranks > 1
        return [
            *("--tensor-parallel", str(ranks)),
            *(["--expert-parallel"] if by_expert else []),
        ]

    def sampling(self) -> "SamplingOptions":
        return {
            "max_new_tokens": self.max_new_tokens,
            "temperature": self.temperature,
            "top_k": self.top_k,
            "top_p": self.top_p,
            "seed": self.seed,
            "ignore_eos": self.ignore_eos,
        }


def main(argv: Sequence[str]) -> int:
    config = parse_config("tasuki generate", "Answer prompts.", argv, GenerateConfig)
    from tasuki.client.session import Client

    from .prompt_answers import answer_all, as_json, as_text, count_predictions, wait_until_met

    prompts = read_prompts(config)
    predictions = read_predictions(config, len(prompts))
    print("starting daemons ...", file=sys.stderr, flush=True)
    with daemons(config) as address, Client(address) as client:
        wait_until_met(client)
        print(f"answering {len(prompts)} prompts ...", file=sys.stderr, flush=True)
        answers = answer_all(client, prompts, predictions, config.sampling())
    if config.json:
        objects = [as_json(answer) for answer in answers]
        if config.prediction is not None:
            count_predictions(objects)
        print(json.dumps(objects, indent=1))
    else:
        for index, answer in enumerate(answers):
            print(as_text(index, answer, with_ids=config.ids))
    return 0


def daemons(config: GenerateConfig) -> AbstractContextManager[str]:
    """Start the daemons for the answers. Yields the HOST:PORT for clients. With two daemons every
    prompt is transferred, short ones too."""
    from .launcher import disaggregated, fused

    if config.disaggregated:
        ranks = config.prefill_ranks
        # An engine of several ranks has a separate process.
        apart = ["--handover-bind", "127.0.0.1:0"] if ranks > 1 else []
        decode = ["--route", "fixed", "--local-prefill-tokens", "0"]
        return disaggregated(
            config.daemon_flags(),
            [*decode, *config.rank_flags(config.tensor_parallel)],
            [*apart, *config.rank_flags(ranks)],
        )
    return fused([*config.daemon_flags(), *config.rank_flags(config.tensor_parallel)])


def read_prompts(config: GenerateConfig) -> "list[Prompt]":
    """Return the configured prompts. Raises PromptFileError."""
    from tasuki.client.prompt import Prompt

    if config.prompt_ids is None:
        if not config.image:
            return [Prompt(text=config.prompt)]
        parts = [*map(_read_picture, config.image.split(",")), config.prompt]
        return [Prompt(messages=[{"role": "user", "parts": parts}])]
    lists = _read_ids("--prompt-ids", config.prompt_ids)
    return [Prompt(token_ids=ids) for ids in lists]


def read_predictions(config: GenerateConfig, prompts: int) -> list[list[int]]:
    """Return one prediction for each prompt, all empty if none are given. Raises
    PromptFileError."""
    if config.prediction is None:
        return [[] for _ in range(prompts)]
    lists = _read_ids("--prediction", config.prediction)
    if len(lists) != prompts:
        raise PromptFileError(
            f"--prediction {config.prediction} has {len(lists)} lists: write one for each of the "
            f"{prompts} prompts, [] where nothing is known"
        )
    return lists


def _read_picture(file: str) -> bytes:
    try:
        return Path(file).read_bytes()
    except OSError as error:
        raise PromptFileError(f"--image {file}: cannot be read ({error}); name a file") from error


def _read_ids(flag: str, file: str) -> list[list[int]]:
    path = Path(file)
    try:
        lists = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise PromptFileError(
            f"{flag} {path}: cannot be read ({error}); write a JSON list of lists of token ids, as "
            "[[1, 2], [3]]"
        ) from error
    if not isinstance(lists, list) or not lists or not all(_is_ids(item) for item in lists):
        raise PromptFileError(
            f"{flag} {path}: write a non-empty list of lists of integers, as [[1, 2], [3]]"
        )
    return lists


def _is_ids(item: object) -> bool:
    return isinstance(item, list) and all(
        isinstance(token, int) and not isinstance(token, bool) and abs(token) < 2**31
        for token in item
    )
