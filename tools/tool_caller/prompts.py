"""The prompts of the tool caller's training: by the published templates whose calls are XML, and
bare ones, which are the end of those without what is always the same."""

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tasuki.server.text.rendering.compiled_template import CompiledTemplate
from tools.training.checkpoint import TURN_END, TURN_START

from .dialogue import Call, Render

XML_TEMPLATES = ("qwen3_5_think", "qwen3_5_nothink", "qwen3_6", "qwen3_8")
_ROOT = Path(__file__).parents[2]
_TEMPLATES = _ROOT / "tests" / "harness" / "qwen_templates"


def texts() -> list[str]:
    """Prose and code: what words are learnt from."""
    files = (_TEMPLATES / "LICENSE", _ROOT / "model" / "embedded" / "held_out.txt")
    prose = [path.read_text(encoding="utf-8") for path in files]
    return [*prose, *map(template_source, XML_TEMPLATES)]


def passages() -> list[str]:
    """The same texts, without what begins and ends a turn."""
    return [text.replace(TURN_START, "").replace(TURN_END, "") for text in texts()]


def words_of(found: Sequence[str]) -> list[str]:
    """Words of the texts, each once."""
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
    """A Render. The tools are left out."""
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
