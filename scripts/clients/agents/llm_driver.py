"""Driver of the command llm: a model of its `extra-openai-models.yaml`."""

import json
import os
import subprocess
import sys
from pathlib import Path

import columns as c

HOME = Path.cwd() / "llm"
HOME.mkdir(exist_ok=True)
entry = {
    "model_id": "ours",
    "model_name": c.MODEL,
    "api_base": c.API,
    "supports_tools": True,
    "supports_schema": True,
}
(HOME / "extra-openai-models.yaml").write_text(json.dumps([entry]))
FUNCTIONS = f"""
def get_weather(city: str, days: int) -> str:
    "The weather to come."
    return {c.FOUND!r}
"""


def output(*arguments: str) -> str:
    done = subprocess.run(
        [str(Path(sys.executable).with_name("llm")), "-m", "ours", *arguments],
        env={**os.environ, "LLM_USER_PATH": str(HOME), "OPENAI_API_KEY": c.KEY},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert not done.returncode, done.stderr[-400:]
    return done.stdout.strip() + ("\n" + done.stderr if "--td" in arguments else "")


def called() -> None:
    out = output("--functions", FUNCTIONS, "--td", c.CALL)
    assert c.FOUND in out and json.dumps(c.ARGUMENTS) in out.replace("'", '"'), out[-400:]


def written() -> dict:
    return json.loads(output("--no-stream", "--schema", json.dumps(c.PERSON_SCHEMA), c.WRITE))


c.report(
    text=c.says(lambda: output("--no-stream", c.SAY)),
    stream=c.says(lambda: output(c.SAY)),
    tools=called,
    structured=c.gives(c.PERSON, written),
    default=c.says(lambda: output("-o", "max_tokens", "100", c.SAY)),
)
