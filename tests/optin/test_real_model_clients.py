"""Unmodified clients with the real model: libraries, requests of editors, evaluations.

    python -m pytest tests/optin/test_real_model_clients.py -o addopts= -q -s

Not run in CI: they download several hundred MB. TESSERA_CLIENTS names a folder that stores the installation.
Results: log-archive.md.
"""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.servers import RunningServer

pytestmark = pytest.mark.timeout(1800)
PROGRAMS = Path(__file__).parent / "clients"
MODEL = "smollm2-135m-instruct"
# Each in an environment of its own: together no versions suit all of them, and pip searches for an hour.
PYTHON_PACKAGES = {
    "litellm": ("litellm",),
    "langchain": ("langchain-openai", "langchain-anthropic", "langchain-ollama"),
    "llama_index": (
        "llama-index-llms-openai-like", "llama-index-llms-ollama", "llama-index-embeddings-openai-like",
    ),
    "instructor": ("instructor",),
    "pydantic_ai": ("pydantic-ai-slim[openai]",),
    "smolagents": ("smolagents[openai]",),
    "openai_agents": ("openai-agents",),
}  # fmt: skip
NPM_PACKAGES = (
    "openai", "@anthropic-ai/sdk", "ollama", "ai", "@ai-sdk/openai", "@ai-sdk/openai-compatible",
    "@ai-sdk/anthropic", "zod",
)  # fmt: skip
EASY = (
    ("The capital of France is", "Paris", "London"), ("The opposite of hot is", "cold", "green"),
    ("Water is made of hydrogen and", "oxygen", "iron"), ("The largest planet is", "Jupiter", "Mars"),
    ("A week has", "seven days", "ten days"), ("The sky on a clear day is", "blue", "square"),
    ("Cats and dogs are", "animals", "numbers"), ("Two plus two is", "four", "nine"),
    ("Fish live in", "water", "fire"), ("The sun rises in the", "east", "night"),
    ("Bread is made from", "flour", "glass"), ("A bicycle has two", "wheels", "heads"),
    ("Spanish is spoken in", "Spain", "Norway"), ("Ice melts when it gets", "warm", "older"),
    ("The author of Romeo and Juliet is", "Shakespeare", "Mozart"), ("Bees make", "honey", "cars"),
    ("The moon goes around the", "Earth", "house"), ("Winter is followed by", "spring", "lunch"),
    ("A triangle has three", "sides", "names"), ("Doctors work in", "hospitals", "clouds"),
)  # fmt: skip


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return Path(os.environ.get("TESSERA_CLIENTS") or tmp_path_factory.mktemp("clients"))


def environment(folder, *packages):
    """A Python with these packages; its path."""
    program = folder / ("Scripts/python.exe" if sys.platform == "win32" else "bin/python")
    if not program.exists():
        subprocess.run([sys.executable, "-m", "venv", str(folder)], check=True)
        subprocess.run([str(program), "-m", "pip", "install", "-q", *packages], check=True)
    return str(program)


@pytest.fixture(scope="module")
def server(real_model, tmp_path_factory):
    home = tmp_path_factory.mktemp("clients-home")
    (home / "models").mkdir()
    (home / "models" / f"{MODEL}.gguf").symlink_to(real_model)
    running = RunningServer(home)
    yield running
    running.stop()


def run(*command, cwd=None, env=None):
    done = subprocess.run(
        command,
        cwd=cwd,
        env={**os.environ, **(env or {})},
        capture_output=True,
        text=True,
        timeout=1500,
        check=False,
    )
    assert done.returncode == 0, (done.stdout + done.stderr)[-4000:]
    return done.stdout


@pytest.mark.parametrize("name", PYTHON_PACKAGES)
def test_python_libraries(folder, server, name):
    python = environment(folder / name, *PYTHON_PACKAGES[name])
    assert f">{name}" in run(python, str(PROGRAMS / "libraries_real.py"), server.url, MODEL, name)


@pytest.mark.skipif(shutil.which("npm") is None, reason="needs npm")
@pytest.mark.parametrize("name", ["openai", "anthropic", "ollama", "aisdk", "vscode"])
def test_javascript_libraries_and_editors(folder, server, name):
    place = folder / "js"
    if not (place / "node_modules").exists():
        place.mkdir(parents=True, exist_ok=True)
        run("npm", "init", "-y", cwd=place)
        run("npm", "install", "--no-audit", "--no-fund", *NPM_PACKAGES, cwd=place)
    shutil.copy(PROGRAMS / "real.mjs", place)
    assert f">{name}" in run("node", "real.mjs", server.url, MODEL, name, cwd=place)


def tasks(folder):
    """Twenty easy questions, to choose from and to answer freely, as lm-evaluation-harness reads them."""
    folder.mkdir(exist_ok=True)
    rows = [{"question": q, "choices": [right, wrong], "answer": 0} for q, right, wrong in EASY]
    (folder / "easy.jsonl").write_text("\n".join(map(json.dumps, rows)))
    head = {
        "dataset_path": "json",
        "dataset_kwargs": {"data_files": {"test": str(folder / "easy.jsonl")}},
        "test_split": "test",
    }
    choose = {
        "task": "easy_choose", "output_type": "multiple_choice", "doc_to_text": "{{question}}",
        "doc_to_choice": "{{choices}}", "doc_to_target": "{{answer}}", "metric_list": [{"metric": "acc"}],
    }  # fmt: skip
    write = {
        "task": "easy_write", "output_type": "generate_until", "doc_to_text": "Finish: {{question}}",
        "doc_to_target": "{{choices[answer]}}", "metric_list": [{"metric": "bypass"}],
        "generation_kwargs": {"until": ["\n"], "max_gen_toks": 24, "temperature": 0},
    }  # fmt: skip
    for task in (choose, write):
        (folder / f"{task['task']}.yaml").write_text(json.dumps({**head, **task}))


@pytest.mark.parametrize(
    ("kind", "task", "route"),
    [
        ("local-completions", "easy_choose", "completions"),
        ("local-chat-completions", "easy_write", "chat/completions"),
    ],
)
def test_lm_evaluation_harness(folder, server, real_model, tmp_path, kind, task, route):
    python = environment(folder / "lm-eval", "lm-eval[api]", "transformers", "gguf")
    tasks(tmp_path / "tasks")
    run(python, str(PROGRAMS / "tokenizer_folder.py"), str(real_model), str(tmp_path / "tokenizer"))
    about = f"model={MODEL},base_url={server.url}/v1/{route},tokenizer={tmp_path / 'tokenizer'},num_concurrent=2"
    chat = ["--apply_chat_template"] if kind == "local-chat-completions" else []
    offline = {"HF_HUB_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1", "HF_HOME": str(tmp_path / "hf")}
    run(
        *(python, "-m", "lm_eval", "run", "--model", kind, "--model_args", about, "--tasks", task, *chat),
        *("--include_path", str(tmp_path / "tasks"), "--output_path", str(tmp_path / "out"), "--log_samples"),
        env=offline,
    )
    [report] = (tmp_path / "out").rglob("results_*.json")
    results = json.loads(report.read_text())["results"][task]
    print(kind, results)
    if task == "easy_choose":
        assert results["acc,none"] >= 0.8
