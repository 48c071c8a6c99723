"""A ten-step agent session on a real server: back to before each step, with its time, tokens and disk.

    python tests/bench/agent_steps.py [MODEL.gguf] [--files 2000] [--record]

Each step changes files in a project of `--files` files. At each step the model is asked for 16 tokens
at temperature 0 with the conversation so far. Afterwards the session goes back to every step, last one first: files
must have the same hash, the 16 tokens must be the same, and the prompt must come from the prefix cache.
"""

import argparse
import json
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import httpx2

from app.answer_facts import ToolCall
from app.code.agent.checkpoints import Checkpoints
from app.code.agent.loop import Agent
from app.code.agent.models import ModelTurn
from app.code.agent.tools import Toolbox
from app.code.agent.types import AgentEvent, Stepped
from app.code.edits.journal import Journal
from app.code.edits.session import EditSession
from app.code.index.project import ProjectIndex
from app.code.workspace import Workspace
from app.tools.consent import Consent
from tests.bench.recording import record
from tests.support.servers import RunningServer

STEPS = 10


class Calls:
    """A model whose calls are given: one edit in each turn."""

    def __init__(self) -> None:
        self._next = 0

    def turn(self, messages: list[dict[str, Any]], tools: list[dict[str, Any]]) -> ModelTurn:
        del messages, tools
        self._next += 1
        if self._next > STEPS:
            return ModelTurn("Done.")
        text = f"# step {self._next}\n" + "\n".join(f"value_{n} = {n * self._next}" for n in range(8)) + "\n"
        call = json.dumps({"path": f"src/made_{self._next % 3}.py", "content": text})
        return ModelTurn("", [ToolCall("write_file", call, f"c{self._next}")])


def asked(server: RunningServer, model: str, messages: list[dict[str, Any]]) -> tuple[str, int, int]:
    """The next 16 tokens as text, the tokens of the prompt, and how many of them were cached."""
    parts = [f"{m['role']} {m['content'][:40]} {json.dumps(m.get('tool_calls', ''))[-80:]}" for m in messages[1:]]
    prompt = "\n".join(parts) + "\n"
    body = {"model": model, "prompt": prompt, "temperature": 0, "max_tokens": 16, "ignore_eos": True}
    headers = {"Authorization": f"Bearer {server.token}"}
    answer = httpx2.post(f"{server.url}/v1/completions", json=body, headers=headers, timeout=600)
    answer.raise_for_status()
    said = answer.json()
    usage = said["usage"]
    return said["choices"][0]["text"], usage["prompt_tokens"], usage["prompt_tokens_details"]["cached_tokens"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", nargs="?", type=Path)
    parser.add_argument("--files", type=int, default=2000)
    parser.add_argument("--record", action="store_true")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        root, home = Path(folder) / "project", Path(folder) / "home"
        for number in range(options.files):
            path = root / f"lib{number // 100}" / f"file{number}.py"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text("\n".join(f"line_{number}_{n} = {n}" for n in range(40)))
        home.mkdir()
        if options.model is not None:
            (home / "models").mkdir()
            (home / "models" / options.model.name).symlink_to(options.model.resolve())
        server = RunningServer(home)
        try:
            _session(server, options, root, Path(folder))
        finally:
            server.stop()


def _session(server: RunningServer, options: argparse.Namespace, root: Path, folder: Path) -> None:
    headers = {"Authorization": f"Bearer {server.token}"}
    models = [entry["id"] for entry in httpx2.get(f"{server.url}/v1/models", headers=headers).json()["data"]]
    model = options.model.stem if options.model else models[0]
    index = ProjectIndex(Workspace(root), folder / "cache")
    journal = Journal(folder / "edits.db")
    saved = Checkpoints(index.workspace, folder / "checkpoints")
    said: list[tuple[str, int, int]] = []
    saves: list[float] = []

    class Timed(Checkpoints):
        def save(self) -> Any:
            begun = time.monotonic()
            done = super().save()
            saves.append(time.monotonic() - begun)
            return done

    saved = Timed(index.workspace, folder / "checkpoints")

    def on_event(event: AgentEvent) -> None:
        if isinstance(event, Stepped):
            said.append(asked(server, model, agent.steps[-1].messages))

    toolbox = Toolbox(index, EditSession(index.workspace, journal), Consent(lambda _: "once"), lambda _: None)
    agent = Agent(Calls(), [toolbox], on_event, checkpoints=saved)
    agent.work("Make the files.")
    trees = [step.files.tree for step in agent.steps]
    print(f"saved in {saves[0]:.2f} s at first, then {statistics.median(saves[1:]):.2f} s")
    disk = saved.disk_bytes
    restored, computed, same = [], [], 0
    for number in range(STEPS, 0, -1):
        begun = time.monotonic()
        agent.back(number)
        restored.append(time.monotonic() - begun)
        assert saved.save().tree == trees[number - 1], "other files"
        text, prompt, cached = asked(server, model, agent.messages)
        same += text == said[number - 1][0]
        computed.append(prompt - cached)
        print(
            f"step {number}: {restored[-1]:.3f} s, {prompt} tokens, {cached} cached, {text == said[number - 1][0]}"
        )
    print(
        f"{same} of {STEPS} steps with the same tokens; slowest {max(restored):.3f} s; {disk / 1e6:.2f} MB on disk"
    )
    if options.record:
        facts = {"model": model, "files": options.files, "steps": STEPS}
        record("agent_steps", "slowest restore", max(restored), "s", n=STEPS, **facts)
        record("agent_steps", "steps with identical next tokens", same, "steps", n=STEPS, **facts)
        record("agent_steps", "most prompt tokens computed again", max(computed), "tokens", n=STEPS, **facts)
        record("agent_steps", "disk used", disk / 1e6, "MB", **facts)
    index.close()
    journal.close()


if __name__ == "__main__":
    main()
