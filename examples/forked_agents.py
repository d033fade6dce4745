"""Fork one conversation for sub-agents with different questions.

`python examples/forked_agents.py 127.0.0.1:7000`

A fork shares every page and checkpoint of its conversation. Sub-agents compute only their own
question, and run at the same time.
"""

import asyncio
import sys

from tasuki.client import AsyncClient, AsyncSession, Prompt

BRIEF = "Longbourn is a village. The family of the house has five daughters and little money. " * 8
QUESTIONS = (
    "Who of them reads most?",
    "Who of them walks to the town in the rain?",
    "Who of them laughs loudest?",
)


async def ask(session: AsyncSession, question: str) -> tuple[str, int, int]:
    """Ask the session a question. Returns the answer, the number of prompt tokens, and the number
    of cached ones."""
    await session.append(Prompt(messages=[{"role": "user", "content": question}]))
    answer = await session.generate(max_new_tokens=24, temperature=0.7, seed=1).result()
    hit = answer.usage.hit
    return answer.text, answer.usage.prompt_tokens, 0 if hit is None else hit.usable_tokens


async def main(target: str) -> None:
    async with AsyncClient(target) as client, await client.open_session() as parent:
        await parent.append(Prompt(messages=[{"role": "system", "content": BRIEF}]))
        text, prompt, cached = await ask(parent, "Tell me of the house.")
        print(f"parent: {prompt} prompt tokens, {cached} cached: {' '.join(text.split())}")
        children = [await parent.fork() for _ in QUESTIONS]
        answers = await asyncio.gather(
            *(ask(child, question) for child, question in zip(children, QUESTIONS, strict=True))
        )
        for question, (text, prompt, cached) in zip(QUESTIONS, answers, strict=True):
            print(f"{question} {prompt} prompt tokens, {cached} cached: {' '.join(text.split())}")
        for child in children:
            await child.close()


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
