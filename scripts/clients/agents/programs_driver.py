"""Driver of the programs qwen-code, opencode, codex and Claude Code. Each is run for one request,
and exits after its answer.

`python programs_driver.py URL MODEL PROGRAM NAME`, in a separate folder for their homes and
settings.
"""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import columns as c

PROGRAM, NAME = sys.argv[3:5]
HERE = Path.cwd()
WRITTEN = HERE / "work" / "note"
CONTENT = c.SAID
_SECONDS = 600


def output(*arguments: str, **environment: str) -> str:
    (HERE / "work").mkdir(exist_ok=True)
    done = subprocess.run(
        [PROGRAM, *arguments],
        cwd=HERE / "work",
        env={"PATH": os.environ["PATH"], "HOME": str(HERE), "CI": "1", **environment},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=_SECONDS,
    )
    out = f"{done.stdout}\n{done.stderr}"
    with (HERE / "output").open("a", encoding="utf-8") as log:
        log.write(f"{arguments}\n{out}\n")
    assert not done.returncode, out[-500:]
    return out


def qwen_code(text: str) -> str:
    return output(
        *("--yolo", "--auth-type", "openai", "-p", text),
        OPENAI_API_KEY=c.KEY,
        OPENAI_BASE_URL=c.API,
        OPENAI_MODEL=c.MODEL,
        QWEN_TELEMETRY_ENABLED="0",
    )


def opencode(text: str) -> str:
    provider = {
        "npm": "@ai-sdk/openai-compatible",
        "options": {"baseURL": c.API, "apiKey": c.KEY},
        "models": {c.MODEL: {"tool_call": True, "limit": {"context": 100000, "output": 400}}},
    }
    settings = {
        "provider": {"ours": provider},
        "permission": "allow",
        "share": "disabled",
        "autoupdate": False,
        "small_model": f"ours/{c.MODEL}",
    }
    return output(
        # The program joins its arguments, after putting those with a space into quotation marks.
        *("run", "--model", f"ours/{c.MODEL}", *text.split(" ")),
        OPENCODE_CONFIG_CONTENT=json.dumps(settings),
        OPENCODE_DISABLE_MODELS_FETCH="1",
    )


def codex(text: str) -> str:
    settings = {
        "model": c.MODEL,
        "model_provider": "ours",
        "model_providers.ours.name": "ours",
        "model_providers.ours.base_url": c.API,
        "model_providers.ours.wire_api": "responses",
        "web_search": "disabled",
        "model_context_window": 100000,
    }
    flags = [
        part for key, value in settings.items() for part in ("-c", f"{key}={json.dumps(value)}")
    ]
    access = "--dangerously-bypass-approvals-and-sandbox"
    return output("exec", "--skip-git-repo-check", access, *flags, text)


def claude_code(text: str) -> str:
    """Run Claude Code on a text, with one of its two dozen tools and a short system prompt."""
    return output(
        *("--tools", "Bash", "--allowedTools", "Bash", "--system-prompt", "Be brief."),
        *("--disable-slash-commands", "-p", text),
        ANTHROPIC_BASE_URL=c.URL,
        ANTHROPIC_AUTH_TOKEN=c.KEY,
        ANTHROPIC_MODEL=c.MODEL,
        CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC="1",
        DISABLE_AUTOUPDATER="1",
    )


# By client: a request for its file-writing tool. qwen-code takes no relative path.
WRITES = {
    "qwen-code": f'Call write_file with file_path="{WRITTEN}", content="{CONTENT}".',
    "opencode": f'Call write with filePath="{WRITTEN.name}", content="{CONTENT}".',
    "codex": f"Call exec_command with cmd=\"printf '{CONTENT}' > {WRITTEN.name}\".",
    "claude-code": f"Call Bash with command=\"printf '{CONTENT}' > {WRITTEN.name}\".",
}
RUN: dict[str, Callable[[str], str]] = {
    "qwen-code": qwen_code,
    "opencode": opencode,
    "codex": codex,
    "claude-code": claude_code,
}


def streamed() -> None:
    """Check streaming by any request; these programs always stream."""
    out = RUN[NAME](c.SAY)
    assert c.SAID in out.replace(c.SAY, ""), out[-500:]


def wrote() -> None:
    WRITTEN.unlink(missing_ok=True)
    out = RUN[NAME](WRITES[NAME])
    assert WRITTEN.exists(), out[-500:]
    c.same(WRITTEN.read_text().strip(), CONTENT)


c.report(stream=streamed, tools=wrote, default=streamed)
