"""`python -m scripts.clients.install CLIENT ...`: installs clients by other projects, each into a
separate environment. Their dependencies contradict tasuki's and each other's.

A client's version is pinned, so a run can be repeated.
"""

import argparse
import os
import re
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parent.parent.parent
FOLDER = ROOT / "build" / "clients"
_NEWER_PYTHONS = 3
_TORCH = "torch==2.13.0"
"""The torch version named together with packages requiring torch, because an index may otherwise
choose a build with CUDA."""


class MissingPython(RuntimeError):
    """A client needs a newer Python than any on PATH; the message names both."""


PACKAGES = {
    "trie": ("tokenspeed-trie==0.1.1.post20260523",),
    "aiperf": ("aiperf==0.13.0",),
    "evalscope": (_TORCH, "evalscope[perf]==1.14.1"),
    "guidellm": (_TORCH, "guidellm==0.8.1"),
    "inference-perf": ("inference-perf==0.7.0",),
    "genai-bench": ("genai-bench==0.0.5",),
    "locust": ("locust==2.47.0",),
    "ray": ("ray==2.60.0",),
    "docs": ("mkdocs-material==9.8.1",),
    "goldens": ("transformers==5.17.0",),
    "openai": ("openai==3.54.0",),
    "anthropic": ("anthropic==2.12.0",),
    "litellm": ("litellm==1.104.0",),
    "openai-agents": ("openai-agents==0.24.0",),
    "langchain-openai": ("langchain-openai==1.7.0",),
    "pydantic-ai": ("pydantic-ai-slim[openai,anthropic]==2.68.0",),
    "instructor": ("instructor==1.17.0",),
    "smolagents": ("smolagents[openai]==1.26.0",),
    "llm": ("llm==0.36",),
    "lm-eval": ("lm-eval[api]==0.4.13",),
    "haystack": ("haystack-ai==3.3.0",),
    "autogen": ("autogen-agentchat==0.7.5", "autogen-ext[openai]==0.7.5"),
    "llama-index": ("llama-index-core==0.14.25", "llama-index-llms-openai-like==0.8.1"),
    "langgraph": (
        *("langgraph==1.2.22", "langchain==1.4.7", "langchain-anthropic==1.7.7"),
        "langchain-openai==1.7.3",
    ),
    "semantic-kernel": ("semantic-kernel==1.45.0",),
    "agno": ("agno==3.1.10", "openai==3.54.0", "anthropic==2.12.0"),
    "suites": (
        *("pytest==9.2.0", "pytest-asyncio==1.5.0", "pytest-timeout==2.4.0", "openai==3.52.0"),
        *("anthropic==2.12.0", "requests>=2", "jsonschema>=4", "schemathesis==4.32.5", "regex"),
        *("transformers==5.24.0", "numpy", "pybase64", "fastapi", "httpx", "websockets", "PyYAML"),
        *("openai-harmony==0.0.8", "mcp<2"),
    ),
    "inspect-ai": ("inspect-ai==0.3.285", "openai==3.54.0"),
    "vllm": ("vllm[bench]==0.33.0",),
}

NODE_PACKAGES = {
    "axe": ("axe-core@4.14.1",),
    "open-responses": ("tsx@4.23.15", "zod@3.25.76"),
    "qwen-code": ("@qwen-code/qwen-code@0.24.4",),
    "opencode": ("opencode-ai@1.18.33",),
    "codex": ("@openai/codex@0.169.0",),
    "claude-code": ("@anthropic-ai/claude-code@2.1.197",),
    "ai-sdk": (
        *("ai@7.0.173", "@ai-sdk/openai@4.0.118", "@ai-sdk/openai-compatible@3.0.92"),
        "zod@4.6.7",
    ),
}
"""Clients installed by npm, each into its own `node_modules`."""


OLDEST_PYTHON = {"inference-perf": (3, 12)}
"""Oldest usable Python of each client with a newer requirement than our own interpreter."""


@dataclass(frozen=True)
class Source:
    """The build of a client from source. needs: packages installed before its build. environment:
    environment variables of the build."""

    needs: tuple[str, ...]
    environment: Mapping[str, str]


BUILT = {
    "vllm": Source(
        (
            *(_TORCH, "setuptools>=77,<81", "setuptools-scm", "setuptools-rust", "wheel"),
            *("packaging", "ninja", "cmake", "jinja2"),
        ),
        {"VLLM_TARGET_DEVICE": "empty", "VLLM_VERSION_OVERRIDE": "0.33.0"},
    )
}
"""Clients built from source. vLLM's benchmark client needs none of the GPU kernels in vLLM's
wheel."""

BESIDE = frozenset({"docs", "goldens", "ray", "suites"})
"""Clients importing our own package. They need its dependencies at our versions."""


def pins(client: str) -> str:
    """Return text with the versions of the client's packages. A package with another name than the
    client's is shown with its name."""
    found = [
        re.fullmatch(r"(@?[^=@\[]+)(?:\[.*\])?(?:==|@)(.+)", package)
        for package in (*PACKAGES.get(client, ()), *NODE_PACKAGES.get(client, ()))
    ]
    named = [(pin[1], pin[2]) for pin in found if pin is not None]
    return ", ".join(version if name == client else f"{name} {version}" for name, version in named)


def interpreter(client: str) -> Path | None:
    """Return the path of Python in the client's environment, or None if it is not installed."""
    folder = FOLDER / client
    return folder / "bin" / "python" if (folder / "installed").exists() else None


def program(client: str, name: str) -> Path:
    """Return the path of a command installed by the client's packages. REQUIRES: the client is
    installed."""
    folder = "node_modules/.bin" if client in NODE_PACKAGES else "bin"
    return FOLDER / client / folder / name


def install(client: str) -> None:
    """Install a client into its environment, if it is not installed. Raises CalledProcessError with
    the error of pip or npm on stderr, and MissingPython."""
    folder = FOLDER / client
    if (folder / "installed").exists():
        return
    if client in NODE_PACKAGES:
        folder.mkdir(parents=True, exist_ok=True)
        npm = ("npm", "install", "--no-audit", "--no-fund", "--prefix", str(folder))
        subprocess.run([*npm, *NODE_PACKAGES[client]], check=True)
    else:
        _install_python(client, folder)
    (folder / "installed").touch()


def _install_python(client: str, folder: Path) -> None:
    subprocess.run([_python(client), "-m", "venv", str(folder)], check=True)
    pip = [str(folder / "bin" / "pip"), "install", "-q", "--progress-bar", "off"]
    if client in BESIDE:
        pip += ["-c", str(ROOT / "constraints.txt")]
    environment = dict(os.environ)
    if client in BUILT:
        subprocess.run([*pip, *BUILT[client].needs], check=True)
        pip += ["--no-build-isolation", "--no-binary", client]
        environment |= BUILT[client].environment
    subprocess.run([*pip, *PACKAGES[client]], check=True, env=environment)
    if client in BESIDE:
        (packages,) = folder.glob("lib/python*/site-packages")
        ours = sysconfig.get_path("purelib")
        (packages / "beside.pth").write_text(f"import site; site.addsitedir({ours!r})\n")


def _python(client: str) -> str:
    """Return the interpreter for making the client's environment. Raises MissingPython."""
    oldest = OLDEST_PYTHON.get(client, sys.version_info[:2])
    if sys.version_info[:2] >= oldest:
        return sys.executable
    for minor in range(oldest[1], oldest[1] + _NEWER_PYTHONS):
        found = shutil.which(f"python3.{minor}")
        # The path may have a pyenv shim of a version that pyenv cannot run.
        if found and not subprocess.run([found, "--version"], capture_output=True).returncode:
            return found
    wanted = ".".join(map(str, oldest))
    raise MissingPython(
        f"{client} wants Python {wanted}: put a python{wanted} on the path, "
        f"or name one by PYENV_VERSION where pyenv has it"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("clients", nargs="+", choices=sorted({*PACKAGES, *NODE_PACKAGES}))
    for client in parser.parse_args().clients:
        install(client)
        print(f"clients: {client} is in {FOLDER / client}", flush=True)


if __name__ == "__main__":
    main()
