"""Tasks whose reference answers come from the model itself, to compare other files of that model."""

import asyncio
import json

from engine.job_kinds.quantize.gate import ask_all
from engine.job_kinds.quantize.tasks import own_tasks
from engine.runner.protocol import LoadSettings

COMMANDS = [
    "tar",
    "grep",
    "ls",
    "cp",
    "mv",
    "rm",
    "git",
    "find",
    "curl",
    "ssh",
    "sed",
    "awk",
    "ps",
    "kill",
    "df",
    "du",
]
TOKENS = 14


def golden_tasks(folder, model):
    """A JSONL file of sixteen tasks."""
    asked = [{"prompt": f"How do I use {c}?", "answer": "x", "max_tokens": TOKENS} for c in COMMANDS]
    blank = folder / "blank.jsonl"
    blank.write_text("\n".join(map(json.dumps, asked)), "utf-8")
    said = []
    loaded = [(task.name, task) for task in own_tasks(blank).load()]
    settings = LoadSettings(path=str(model), n_ctx=1024, kv_cells=1024, n_parallel=1)
    asyncio.run(ask_all(settings, loaded, lambda key, task, answer: said.append(answer.text), lambda: False))
    assert len({*said}) > len(COMMANDS) // 2, said
    path = folder / "commands.jsonl"
    golden = [line | {"answer": text.strip()} for line, text in zip(asked, said, strict=True)]
    path.write_text("\n".join(map(json.dumps, golden)), "utf-8")
    return path
