"""A fused node in this process with a model writing tokens dictated by a test. It has a tiny model,
the embedded model's tokenizer, a published chat template and the usual tags as tokens."""

import asyncio
import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
import torch

from tasuki.engine.assembly.engines import build_cache, build_fused_engine
from tasuki.engine.assembly.parts import EngineParts
from tasuki.engine.runner import cpu_runner
from tasuki.model.families.loading import build_model, random_weights
from tasuki.model.families.registry import config_of
from tasuki.model.grammar.grammar_compiler import GrammarCompiler
from tasuki.model.grammar.vocabulary import Vocabulary
from tasuki.model.named_checkpoints import embedded_model
from tasuki.model.ops.sampling.reference import Sampled, sample
from tasuki.pycache.arena import Arena
from tasuki.server.config import ServerConfig
from tasuki.server.daemon.client_front import ClientFront
from tasuki.server.daemon.node import Node, about_node
from tasuki.server.daemon.running_engine import NearEngine
from tasuki.server.text.text_codec import TextCodec
from tasuki.server.text.tokenizer import Tokenizer
from tasuki.transfer.chunks.chunk import StepCounter
from tests.harness.engines import TINY, engine_config
from tests.harness.grpc_fixtures import loop_on_a_thread
from tests.harness.http_calls import Reply, ask
from tests.harness.waiting import HANG_SECONDS

TEMPLATES = Path(__file__).with_name("qwen_templates")
TAGS = (
    "<think>",
    "</think>",
    "<tool_call>",
    "</tool_call>",
    "<tool_response>",
    "</tool_response>",
)


# The embedded model's.
_VOCABULARY = 2048
_CONTEXT = 1 << 14


def template_names() -> list[str]:
    return sorted(path.stem for path in TEMPLATES.glob("*.jinja"))


def template_source(name: str) -> str:
    return (TEMPLATES / f"{name}.jinja").read_text(encoding="utf-8")


def write_text_files(folder: Path, template: str) -> None:
    """Write the embedded model's tokenizer into the folder, with TAGS in place of its last learnt
    words."""
    (folder / "chat_template.jinja").write_text(template, encoding="utf-8")
    path = embedded_model() / "tokenizer.json"
    specification = json.loads(path.read_text(encoding="utf-8"))
    model = specification["model"]
    last = sorted(model["vocab"], key=model["vocab"].__getitem__)[-len(TAGS) :]
    like = {**specification["added_tokens"][0], "special": False}
    for word, tag in zip(last, TAGS, strict=True):
        token = model["vocab"].pop(word)
        specification["added_tokens"].append({**like, "content": tag, "id": token})
    model["merges"] = [pair for pair in model["merges"] if "".join(pair) not in last]
    (folder / "tokenizer.json").write_text(json.dumps(specification), encoding="utf-8")


def tiny_parts_of(codec: TextCodec, arena_mib: int, shape: Mapping[str, Any] = TINY) -> EngineParts:
    """Return engine parts with a model of random weights for the codec's vocabulary, with one layer
    of each kind. No test reads text written by this model itself. shape: config.json of its
    family."""
    end = codec.require_tokenizer().added_tokens["<|im_end|>"]
    config = config_of(
        {
            **shape,
            "num_hidden_layers": 2,
            "full_attention_interval": 2,
            "vocab_size": codec.vocab_size,
            "max_position_embeddings": codec.max_tokens,
            "eos_token_id": end,
        }
    )
    layout = config.cache_layout("float32", "float32", "float32")
    model = build_model(config, random_weights(config, 5, torch.float32))
    return EngineParts(
        config, model, Arena(layout, arena_mib * 2**20 // layout.slab_bytes), StepCounter()
    )


@dataclass
class Dictation:
    """A sampler with dictated tokens, by position in the sequence. At other positions it samples
    from the model."""

    tokens: dict[int, int] = field(default_factory=dict)

    def sample(
        self, logits: Any, params: Any, positions: Sequence[int], scores: Any = None
    ) -> list[Sampled]:
        sampled = sample(logits, params, positions, scores)
        return [
            item._replace(token=self.tokens.get(position, item.token))
            for item, position in zip(sampled, positions, strict=True)
        ]


@dataclass(frozen=True)
class DictatedNode:
    address: str
    tokenizer: Tokenizer
    dictation: Dictation

    @property
    def end_token(self) -> int:
        """Id of the token ending the model's turn."""
        return self.tokenizer.added_tokens["<|im_end|>"]

    def post(self, path: str, body: object, headers: dict[str, str] | None = None) -> Reply:
        return ask(self.address, "POST", path, body, headers)

    def prompt(self, body: dict[str, Any]) -> list[int]:
        """Return the prompt's token ids for a chat request."""
        tokens: list[int] = self.post("/tokenize", body).json["tokens"]
        return tokens

    def dictate(self, body: dict[str, Any], text: str) -> None:
        """Set the answer to a chat request. The model ends its turn after it."""
        self.dictate_behind(len(self.prompt(body)), text)

    def dictate_behind(self, prompt_tokens: int, text: str) -> None:
        """Set the answer to a prompt of `prompt_tokens` tokens. The model ends its turn after
        it."""
        tokens = [*self.tokens_of(text), self.end_token]
        self.dictation.tokens = dict(enumerate(tokens, prompt_tokens))

    def tokens_of(self, text: str) -> list[int]:
        """Return the token ids of a text as a model writes it: each tag is one token."""
        for tag in TAGS:
            before, found, behind = text.partition(tag)
            if found:
                own = self.tokenizer.added_tokens[tag]
                return [*self.tokens_of(before), own, *self.tokens_of(behind)]
        return self.tokenizer.encode(text)


@contextmanager
def dictated_node(
    folder: Path, template: str, shape: Mapping[str, Any] = TINY
) -> Iterator[DictatedNode]:
    """Yield a running node with dictated answers. folder: an empty folder for the text files.
    template: source text of the chat template. shape: config.json of the model's family."""
    write_text_files(folder, template)
    config = engine_config(folder)
    codec = TextCodec.load(folder, _VOCABULARY, _CONTEXT)
    parts = tiny_parts_of(codec, 32, shape)
    vocabulary = Vocabulary.load(folder, _VOCABULARY, parts.model_config.eos_ids)
    parts = replace(parts, grammars=GrammarCompiler(vocabulary))
    dictation = Dictation()
    with pytest.MonkeyPatch.context() as patch, loop_on_a_thread() as loop:
        patch.setattr(cpu_runner, "sample", dictation.sample)
        engine = build_fused_engine(config, parts, build_cache(config, parts))
        front = ServerConfig(bind="127.0.0.1:0", http_bind="127.0.0.1:0")

        async def start() -> Node:
            clients = ClientFront(
                *(config, front, parts.model_config, codec),
                *(engine.max_request_tokens, engine.max_batch),
            )
            about = about_node("serve", "fused", str(folder), front)
            node = Node(NearEngine(engine), front, clients, about)
            await node.startup()
            return node

        node = asyncio.run_coroutine_threadsafe(start(), loop).result(HANG_SECONDS)
        try:
            assert node.http_address is not None
            yield DictatedNode(node.http_address, codec.require_tokenizer(), dictation)
        finally:
            asyncio.run_coroutine_threadsafe(node.shutdown(), loop).result(HANG_SECONDS)
