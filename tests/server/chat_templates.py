"""Chat templates of many shapes, and a reference for marks: rendering every part on its own."""

from collections.abc import Mapping, Sequence
from copy import copy
from functools import cache
from pathlib import Path
from typing import Any

from tasuki.server.text.chat_message import ChatMessage, ChatTemplateError
from tasuki.server.text.rendering.chat_cache import PARTS_BYTES, EncodedPieces
from tasuki.server.text.rendering.chat_template import DEFAULT_CACHE_BYTES, ChatTemplate
from tasuki.server.text.rendering.compiled_template import (
    CompiledTemplate,
    SpecialTokenGuard,
    any_of,
)
from tasuki.server.text.tokenizer import Tokenizer
from tasuki.utils.bounded_cache import BoundedCache
from tests.harness.agent_chat import AGENT_TEMPLATE
from tests.harness.grpc_fixtures import TEMPLATE

# Thoughts appear in the last turn alone, tool answers share a user's turn, and the loop looks
# ahead.
THINKING = (Path(__file__).parents[1] / "harness" / "qwen_templates" / "qwen3.jinja").read_text()

TRIMMING = (
    "{% for message in messages %}"
    "<|im_start|>{{ message.role | trim }}\n{{ message.content | trim }}<|im_end|>\n"
    "{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)

ALTERNATING = (
    "{{ bos_token }}{% if messages[0].role == 'system' %}"
    "{% set first = messages[0].content %}{% set rest = messages[1:] %}"
    "{% else %}{% set first = '' %}{% set rest = messages %}{% endif %}"
    "{% for message in rest %}"
    "{% if (message.role == 'user') != (loop.index0 % 2 == 0) %}"
    "{{ raise_exception('roles must alternate') }}{% endif %}"
    "{% if loop.first %}[{{ first }}]{% endif %}"
    "<|im_start|>{{ message.role }}\n{{ message.content.strip() }}<|im_end|>\n"
    "{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)

# The loop writes into a macro; no position can be marked there.
IN_A_MACRO = (
    "{% macro turns(messages) %}{% for message in messages %}"
    "<|im_start|>{{ message.role }}\n{{ message.content }}<|im_end|>\n"
    "{% endfor %}{% endmacro %}{{ turns(messages) | trim }}\n"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)

BY_NUMBER = (
    "{% for number in range(messages | length) %}"
    "<|im_start|>{{ messages[number].role }}\n{{ messages[number].content }}<|im_end|>\n"
    "{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)

# The user's last message is also at the start.
REORDERING = (
    "<|im_start|>system\n{{ messages[-1].content }}<|im_end|>\n"
    "{% for message in messages if message.role != 'tool' %}"
    "<|im_start|>{{ message.role }}\n{{ message.content }}<|im_end|>\n"
    "{% endfor %}{% for message in messages if message.role == 'tool' %}"
    "<|im_start|>tool\n{{ message.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)

# The last message is written differently from earlier ones.
LAST_IS_SPECIAL = (
    "{% for message in messages %}<|im_start|>{{ message.role }}\n{{ message.content }}"
    "{% if loop.last and message.role == 'user' %} /end{% endif %}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)

# A conversation open for an answer is written differently, not only longer.
ASKING_TWICE = (
    "{% for message in messages %}<|im_start|>{{ message.role }}\n{{ message.content }}"
    "{% if loop.last and not add_generation_prompt %} /closed{% endif %}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)

CLOSING = (
    "{% for message in messages %}<|im_start|>{{ message.role }}\n{{ message.content }}<|im_end|>\n"
    "{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% else %}bye<|endoftext|>"
    "{% endif %}"
)

TEMPLATES = {
    "chatml": TEMPLATE,
    "thinking": THINKING,
    "agent": AGENT_TEMPLATE,
    "trimming": TRIMMING,
    "alternating": ALTERNATING,
    "in a macro": IN_A_MACRO,
    "by number": BY_NUMBER,
    "reordering": REORDERING,
    "last is special": LAST_IS_SPECIAL,
    "asking twice": ASKING_TWICE,
    "closing": CLOSING,
}


BOS = {"bos_token": "<|endoftext|>"}

_compiled = cache(lambda source: CompiledTemplate(source, BOS))
_loaded = cache(lambda source, tokenizer: ChatTemplate(source, tokenizer, BOS))


def new_template(
    source: str, tokenizer: Tokenizer, cache_bytes: int = DEFAULT_CACHE_BYTES
) -> ChatTemplate:
    """Return a template without any memory yet. Compiling takes most of a small test's time, so it
    is done once."""
    template = copy(_loaded(source, tokenizer))
    template.pieces = EncodedPieces(tokenizer, cache_bytes)
    template._parts = BoundedCache(PARTS_BYTES)
    return template


def rendered_part_by_part(
    source: str,
    tokenizer: Tokenizer,
    messages: Sequence[ChatMessage],
    *,
    open_answer: bool,
    tools: Sequence[Mapping[str, Any]] = (),
) -> tuple[list[int], tuple[int, ...]]:
    """Render like ChatTemplate.prompt, as the naive reference: one rendering per message, each
    piece encoded in its place."""
    template = _compiled(source)
    guard = SpecialTokenGuard(tokenizer)
    shown, definitions = guard.messages(messages), guard.tools(tools)
    text = template.text(shown, open_answer, definitions)
    ends = set()
    for count in range(1, len(messages) + 1):
        try:
            part = template.text(shown[:count], False, definitions)
        except ChatTemplateError:
            continue
        if text.startswith(part):
            ends.add(len(part))
    return encoded_with_marks(text, ends, guard, tokenizer)


def encoded_with_marks(
    text: str, ends: set[int], guard: SpecialTokenGuard, tokenizer: Tokenizer
) -> tuple[list[int], tuple[int, ...]]:
    token_ids: list[int] = []
    marks = set()
    position = 0
    for special in any_of(tokenizer.added_tokens).finditer(text):
        token_ids += tokenizer.encode(guard.restore(text[position : special.start()]))
        if special.start() in ends:
            marks.add(len(token_ids))
        token_ids.append(tokenizer.added_tokens[special.group()])
        position = special.end()
    token_ids += tokenizer.encode(guard.restore(text[position:]))
    if len(text) in ends:
        marks.add(len(token_ids))
    return token_ids, tuple(sorted(marks - {0}))
