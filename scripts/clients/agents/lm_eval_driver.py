"""Driver of lm-eval: tasks with data of their own, by chat completions, and by completions with
loglikelihoods."""

import json
from pathlib import Path

import columns as c
import lm_eval

HERE = Path.cwd()
lines = [{"question": c.SAY, "answer": c.SAID, "wrong": "Bad night"}] * 3
(HERE / "data.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
_DATA = {
    "dataset_path": "json",
    "dataset_kwargs": {"data_files": {"test": str(HERE / "data.jsonl")}},
    "test_split": "test",
    "doc_to_text": "{{question}}",
}
GENERATE = {
    **_DATA,
    "task": "ours_generate",
    "output_type": "generate_until",
    "doc_to_target": "{{answer}}",
    "generation_kwargs": {"until": ["\n\n\n"], "max_gen_toks": 100},
    "metric_list": [{"metric": "exact_match"}],
}
CHOOSE = {
    **_DATA,
    "task": "ours_choose",
    "output_type": "multiple_choice",
    "doc_to_choice": ["{{answer}}", "{{wrong}}"],
    "doc_to_target": 0,
    "metric_list": [{"metric": "acc"}],
}


def score(model: str, url: str, task: dict, **more) -> dict:
    arguments = {"model": c.MODEL, "base_url": url, "num_concurrent": 1, "max_retries": 1, **more}
    found = lm_eval.simple_evaluate(
        model=model,
        model_args=arguments,
        tasks=[task],
        apply_chat_template=model == "local-chat-completions",
        bootstrap_iters=0,
    )
    return found["results"][task["task"]]


def exact() -> float:
    found = score("local-chat-completions", f"{c.API}/chat/completions", GENERATE)
    return found["exact_match,none"]


def chosen() -> None:
    tokenizer = {"tokenizer_backend": "remote"}
    found = score("local-completions", f"{c.API}/completions", CHOOSE, **tokenizer)
    assert "acc,none" in found, found


c.report(text=c.gives(1.0, exact), default=chosen)
