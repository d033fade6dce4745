"""Test data: a long conversation of an agent, and a chat template shaped like those of agent
models."""

import random
from typing import Any

from tasuki.server.text.chat_message import ChatMessage, ToolCall

# The logic of Qwen3.5's own template: a macro reads contents. Calls are written as functions and
# parameters. Tool answers share a user's turn. Thoughts before the last question are left out.
AGENT_TEMPLATE = r"""{%- macro text_of(content) %}
    {%- if content is string %}
        {{- content }}
    {%- elif content is iterable and content is not mapping %}
        {%- for part in content %}
            {{- part.text if part.text is defined else raise_exception('a part has no text') }}
        {%- endfor %}
    {%- endif %}
{%- endmacro %}
{%- if tools %}
    {{- '<|im_start|>system\n# Tools\n\nThese functions may be called:\n\n<tools>' }}
    {%- for tool in tools %}
        {{- '\n' }}
        {{- tool | tojson }}
    {%- endfor %}
    {{- '\n</tools>\n\nA call stands in <tool_call></tool_call>.' }}
    {%- if messages[0].role == 'system' %}
        {{- '\n\n' + text_of(messages[0].content) | trim }}
    {%- endif %}
    {{- '<|im_end|>\n' }}
{%- elif messages[0].role == 'system' %}
    {{- '<|im_start|>system\n' + text_of(messages[0].content) | trim + '<|im_end|>\n' }}
{%- endif %}
{%- set question = namespace(sought=true, index=messages | length - 1) %}
{%- for message in messages[::-1] %}
    {%- if question.sought and message.role == 'user' %}
        {%- set said = text_of(message.content) | trim %}
        {%- if not (said.startswith('<tool_response>') and said.endswith('</tool_response>')) %}
            {%- set question.sought = false %}
            {%- set question.index = messages | length - 1 - loop.index0 %}
        {%- endif %}
    {%- endif %}
{%- endfor %}
{%- if question.sought %}
    {{- raise_exception('nobody asks anything') }}
{%- endif %}
{%- for message in messages %}
    {%- set said = text_of(message.content) | trim %}
    {%- if message.role == 'system' %}
        {%- if not loop.first %}
            {{- raise_exception('a system message comes first') }}
        {%- endif %}
    {%- elif message.role == 'user' %}
        {{- '<|im_start|>user\n' + said + '<|im_end|>\n' }}
    {%- elif message.role == 'assistant' %}
        {%- set thought = '' %}
        {%- if message.reasoning_content is string %}
            {%- set thought = message.reasoning_content | trim %}
        {%- elif '</think>' in said %}
            {%- set thought = said.split('</think>')[0].split('<think>')[-1] | trim %}
            {%- set said = said.split('</think>')[-1].lstrip('\n') %}
        {%- endif %}
        {%- if loop.index0 > question.index %}
            {{- '<|im_start|>assistant\n<think>\n' + thought + '\n</think>\n\n' + said }}
        {%- else %}
            {{- '<|im_start|>assistant\n' + said }}
        {%- endif %}
        {%- for call in message.tool_calls or [] %}
            {%- set call = call.function if call.function is defined else call %}
            {{- '\n\n' if loop.first and said | trim else ('' if loop.first else '\n') }}
            {{- '<tool_call>\n<function=' + call.name + '>\n' }}
            {%- for name, value in call.arguments | items %}
                {{- '<parameter=' + name + '>\n' }}
                {{- value if value is string else value | tojson }}
                {{- '\n</parameter>\n' }}
            {%- endfor %}
            {{- '</function>\n</tool_call>' }}
        {%- endfor %}
        {{- '<|im_end|>\n' }}
    {%- elif message.role == 'tool' %}
        {%- if loop.first or loop.previtem.role != 'tool' %}
            {{- '<|im_start|>user' }}
        {%- endif %}
        {{- '\n<tool_response>\n' + said + '\n</tool_response>' }}
        {%- if loop.last or loop.nextitem.role != 'tool' %}
            {{- '<|im_end|>\n' }}
        {%- endif %}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\n' }}
    {%- if enable_thinking is defined and enable_thinking is false %}
        {{- '<think>\n\n</think>\n\n' }}
    {%- else %}
        {{- '<think>\n' }}
    {%- endif %}
{%- endif %}
"""

# Number of calls that answer a question.
_CALLS = 12


def agent_tools(count: int = 8) -> list[dict[str, Any]]:
    """Return `count` tool definitions in the form sent by OpenAI's clients."""
    text = {"type": "string", "description": "Where to look, relative to the repository's root."}
    return [
        {
            "type": "function",
            "function": {
                "name": f"look_{number}",
                "description": "Shows the lines of a file that match a pattern. " * 4,
                "parameters": {
                    "type": "object",
                    "properties": {"path": text, "pattern": text, "lines": {"type": "integer"}},
                    "required": ["path"],
                },
            },
        }
        for number in range(count)
    ]


def agent_messages(count: int, source: str, scale: float = 1.0, seed: int = 0) -> list[ChatMessage]:
    """Return the first `count` messages of one conversation: a system message, then questions. Each
    question is answered by a dozen tool calls, each with thoughts. source: text quoted by the
    messages. scale: factor of the message lengths; at 1.0 they have a few hundred characters
    each."""
    sampled = random.Random(seed)

    def quoted(characters: float) -> str:
        length = int(characters * scale)
        begin = sampled.randrange(len(source) - length)
        return source[begin : begin + length]

    def thinking(characters: float) -> str:
        return f"<think>\n{quoted(150)}\n</think>\n\n{quoted(characters)}"

    messages = [ChatMessage("system", quoted(3000))]
    while len(messages) < count:
        messages.append(ChatMessage("user", quoted(200)))
        for _ in range(_CALLS):
            asked = {"path": quoted(20), "pattern": quoted(30), "lines": sampled.randrange(99)}
            call = ToolCall(f"look_{sampled.randrange(8)}", asked)
            messages.append(ChatMessage("assistant", thinking(60), (call,)))
            messages.append(ChatMessage("tool", quoted(380)))
        messages.append(ChatMessage("assistant", thinking(200)))
    return messages[:count]
