"""instructor over openai: its protocols. It has no plain text and no tools of its own."""

import columns as c
import instructor
from openai import OpenAI

Person = c.person()


def client(mode: "instructor.Mode | None" = None):
    plain = OpenAI(base_url=c.API, api_key=c.KEY, max_retries=0, timeout=300)
    return instructor.from_openai(plain, **({} if mode is None else {"mode": mode}))


def asked(text: str) -> dict:
    messages = [{"role": "user", "content": text}]
    return {"model": c.MODEL, "messages": messages, "max_tokens": 300, "max_retries": 0}


def result(text: str, mode: "instructor.Mode | None" = None) -> None:
    found = client(mode).chat.completions.create(response_model=Person, **asked(text))
    c.same(Person(**found.model_dump()), Person(**c.PERSON))


def stream() -> None:
    partial = client().chat.completions.create_partial(
        response_model=Person, **asked(c.call_of("Person"))
    )
    *_, last = partial
    c.same(last.model_dump(), c.PERSON)


def forced_tool() -> None:
    result(c.call_of("Person"), instructor.Mode.TOOLS)


def structured() -> None:
    result(c.WRITE, instructor.Mode.JSON)
    result(c.WRITE, instructor.Mode.JSON_SCHEMA)


def default() -> None:
    result(c.call_of("Person"))


c.check(globals())
