"""The complete HTTP server with a scripted runner: the test determines the model's output."""

import asyncio
import json
import os
import socket
import sys
import threading
from pathlib import Path

import uvicorn

from engine.core.paths import Paths
from engine.library.catalogue import Catalogue
from engine.placement.memory_admission import MemoryAdmission
from engine.placement.placer import Placer
from engine.placement.resources import open_resources
from engine.runner.pipes import Pipes
from engine.runner.process import RunnerProcess, runner_environment
from engine.server.auth import Access
from engine.server.build_server import create_app
from engine.server.models import ServedModels
from engine.server.state import ServerState
from tests.support.fakes.free_pool import FreePool

TOKEN = "management-token"
HERE = Path(__file__).resolve().parent


def home_paths(home: Path) -> Paths:
    return Paths(home / "config", home / "models", home / "state", home / "cache", home / "logs")


def starter(folder: Path, program: str = "fake_runner.py"):
    """A pool starter that spawns fake runners, which read their replies from `folder`."""

    async def start(engine: str, path: str) -> RunnerProcess:
        pipes = Pipes()
        command = (sys.executable, str(HERE / program), str(folder), str(os.getpid()))
        runner = RunnerProcess(await pipes.start(command, runner_environment()), pipes, path)
        await runner._hello
        return runner

    return start


class ScriptedServer:
    """Serves the bundled model's entry on a free loopback port with the fake runner.

    `dispatched`: place and admit loads like a real server. `runner`: another program of this folder.
    """

    def __init__(
        self,
        home: Path,
        access: Access | None = None,
        template: str | None = None,
        dispatched: bool = False,
        fim: dict[str, str] | None = None,
        runner: str = "fake_runner.py",
        **app,
    ) -> None:
        self.folder = home / "script"
        self.folder.mkdir(parents=True)
        self.scripts = 0
        if template is not None:
            (self.folder / "template.jinja").write_text(template, "utf-8")
        (self.folder / "fim.json").write_text(json.dumps(fim or {}))
        paths = home_paths(home)
        placer = Placer(open_resources(paths))
        models = ServedModels(
            lambda: Catalogue(paths),
            user_settings=placer.resources.settings,
            choose=placer.choose if dispatched else None,
        )
        admission = MemoryAdmission(placer) if dispatched else None
        self.state = ServerState(
            models=models,
            pool=FreePool(models, starter(self.folder, runner), admission),
            access=access or Access(TOKEN),
            placer=placer,
            paths=paths,
        )
        # As in engine/server/run.py: asyncio sets TCP_NODELAY only if the protocol is given.
        listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(("127.0.0.1", 0))
        listener.listen(256)
        self.port = listener.getsockname()[1]
        self.url = f"http://127.0.0.1:{self.port}"
        config = uvicorn.Config(create_app(self.state, **app), log_config=None, access_log=False, lifespan="on")
        config.timeout_graceful_shutdown = 2
        self._server = uvicorn.Server(config)
        self._server.install_signal_handlers = lambda: None
        self._thread = threading.Thread(target=self._run, args=(listener,), name="scripted-server")
        self._thread.start()

    def _run(self, listener: socket.socket) -> None:
        asyncio.run(self._server.serve(sockets=[listener]))
        listener.close()

    def say(self, *pieces: str, **reply) -> None:
        """Set the model's next response, token by token."""
        with self._script.open("a", encoding="utf-8") as file:
            file.write(json.dumps({"pieces": list(pieces), **reply}) + "\n")

    def forget(self) -> None:
        """Reset: no replies, no recorded requests."""
        self.scripts += 1
        self._script.touch()
        (self.folder / "requests.jsonl").unlink(missing_ok=True)

    @property
    def _script(self) -> Path:
        return self.folder / f"script{self.scripts:04}.jsonl"

    def asked(self) -> list[dict]:
        """Requests that reached the runner, without the one that it is writing down."""
        path = self.folder / "requests.jsonl"
        return [json.loads(line) for line in path.read_text("utf-8").split("\n")[:-1]] if path.exists() else []

    def prompts(self) -> list[str]:
        return [request["prompt"] for request in self.asked()]

    def stop(self) -> None:
        self._server.should_exit = True
        self._thread.join(60)
        assert not self._thread.is_alive()
