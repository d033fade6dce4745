"""Driver of instructor over openai: its protocols. Instructor has no plain text and no tools of its
own."""

import columns as c
import instructor
from openai import OpenAI

Person = c.person()
PLAIN = OpenAI(base_url=c.API, api_key=c.KEY, max_retries=0, timeout=300)
CALL = c.call_of("Person")


def asked(text: str) -> dict:
    messages = [{"role": "user", "content": text}]
    return {"model": c.MODEL, "messages": messages, "max_tokens": 300, "max_retries": 0}


def result(text: str, **mode: "instructor.Mode") -> dict:
    client = instructor.from_openai(PLAIN, **mode)
    return client.chat.completions.create(response_model=Person, **asked(text)).model_dump()


def streamed() -> dict:
    completions = instructor.from_openai(PLAIN).chat.completions
    *_, last = completions.create_partial(response_model=Person, **asked(CALL))
    return last.model_dump()


c.report(
    stream=c.gives(c.PERSON, streamed),
    forced_tool=c.gives(c.PERSON, lambda: result(CALL, mode=instructor.Mode.TOOLS)),
    structured=c.gives(
        c.PERSON,
        lambda: result(c.WRITE, mode=instructor.Mode.JSON),
        lambda: result(c.WRITE, mode=instructor.Mode.JSON_SCHEMA),
    ),
    default=c.gives(c.PERSON, lambda: result(CALL)),
)
