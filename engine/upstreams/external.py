"""Runs a program of engine/placement/external.py as a runner: one process on loopback per model."""

import asyncio
import contextlib
import secrets
import time
from collections import deque
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from typing import Final

import msgspec

from devices.child_command import child_command
from devices.environment import without_secrets
from devices.process_memory import heaviest_descendant
from engine.core.addresses import free_port
from engine.core.errors import EnvironmentFault, RunnerDied
from engine.core.types import GenerationRequest, ModelFacts
from engine.message_catalog.reasons import Reason, because
from engine.placement.external import KINDS, Address, ExternalKind
from engine.runner.protocol import LoadSettings
from engine.upstreams.errors import UpstreamFault
from engine.upstreams.link import OK, UpstreamLink
from engine.upstreams.registry import UpstreamRegistry
from engine.upstreams.runner import Piece, UpstreamRunner, facts_of
from engine.upstreams.types import Upstream, UpstreamModel

LOOK_EVERY_S: Final = 0.1
# A response that is cut off is attributed to the program's end if that shows within this time.
LAST_WORDS_S: Final = 3.0
# The guard's own limit plus a margin: after it the process is left to the guard.
END_S: Final = 15.0
STDERR_LINES: Final = 200
_MOST_LINE: Final = 400


class ExternalFailed(EnvironmentFault):
    """The program is missing, or its server did not start or ended; the message says why and what to do."""

    code = "external_engine_failed"


class _OwnLink(UpstreamLink):
    """Connections to a server whose key Tessera created and no one else knows."""

    def __init__(self, upstream: Upstream, registry: UpstreamRegistry, key: str) -> None:
        super().__init__(upstream, registry)
        self._own = {"authorization": f"Bearer {key}"}

    async def headers(self) -> dict[str, str]:
        return self._own

    async def answers(self, path: str) -> bool:
        """Whether the server is ready. It may not listen yet, or reject requests until its model is loaded."""
        with contextlib.suppress(UpstreamFault):
            async with self.client.request("GET", path, b"", self._own) as answer:
                await answer.read()
                return answer.status == OK
        return False


class ExternalRunner(UpstreamRunner):
    """One process of such a program on a free loopback port, and the connections to it."""

    def __init__(self) -> None:
        self._address = Address(free_port(), secrets.token_urlsafe(32))
        self._title = ""
        self._process: asyncio.subprocess.Process | None = None
        self._lines: deque[str] = deque(maxlen=STDERR_LINES)
        self._reading: asyncio.Task[None] | None = None
        self._stopping = False
        super().__init__(self._link_as("external"), "", UpstreamRegistry())

    def _link_as(self, name: str) -> _OwnLink:
        """Create the connections, under the name that errors show."""
        upstream = Upstream(name=name, url=f"http://127.0.0.1:{self._address.port}")
        self._own = _OwnLink(upstream, UpstreamRegistry(), self._address.key)
        return self._own

    @property
    def pid(self) -> int | None:
        """The process with the most memory, which may be a child of the program's server."""
        return heaviest_descendant(self._process.pid) if self._process is not None else None

    @property
    def alive(self) -> bool:
        """Whether its process runs and was not stopped."""
        return not self._stopped and self._process is not None and self._process.returncode is None

    @property
    def died(self) -> RunnerDied | None:
        """The way in which it ended by itself, if it did."""
        if self._stopping or self._process is None or self._process.returncode is None:
            return None
        code = self._process.returncode
        ended = because("external_ended", engine=self._title, code=code, said=self._last_lines())
        return RunnerDied(code, ended, tuple(self._lines)[-20:])

    async def load(
        self, settings: LoadSettings, on_progress: Callable[[str, float], None] | None = None
    ) -> ModelFacts:
        """Start the program and wait until it replies. Raises: ExternalFailed, BadModelFile."""
        program = settings.external
        assert program is not None
        kind = KINDS[program.kind]
        self._title = kind.title if program.name == program.kind else f"{program.name} ({kind.title})"
        if not program.program or kind.command is None:
            raise ExternalFailed(because("external_not_installed", engine=self._title, program=program.kind))
        self._link = self._link_as(self._title)
        command = await asyncio.to_thread(kind.command, settings, self._address)
        self._process = await asyncio.create_subprocess_exec(
            *child_command("engine.upstreams.guard", program.program, *command.arguments, *program.arguments),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
            env=without_secrets() | command.environment,
        )
        self._reading = asyncio.create_task(self._read(self._process))
        await self._ready(kind, program.kind, on_progress)
        self._model = kind.model_name(settings)
        listed = UpstreamModel(name=self._model, n_ctx=settings.n_ctx)
        facts = await asyncio.to_thread(kind.facts, settings)
        self.facts = msgspec.structs.replace(
            facts_of(listed, kind.speaks, settings),
            description=f"{self._model} ({self._title})",
            backend=program.kind,
            n_parallel=settings.n_parallel,
            **facts,
        )
        return self.facts

    async def generate(self, request: GenerationRequest) -> AsyncGenerator[Piece, None]:
        """Stream the response. Raises: ExternalFailed: the program ended meanwhile; else as an upstream's."""
        has_started = False
        try:
            async with aclosing(super().generate(request)) as events:
                async for event in events:
                    has_started = True
                    yield event
        except UpstreamFault:
            assert self._process is not None
            with contextlib.suppress(TimeoutError):  # the process may end only after its connection
                await asyncio.wait_for(self._process.wait(), LAST_WORDS_S)
            died = self.died
            if died is None:
                if self._stopped:  # the program no longer replies: a new one replaces it
                    self.kill()
                raise
            what, last_words = "external_broke_off" if has_started else "external_ended", self._last_lines()
            raise ExternalFailed(because(what, engine=self._title, code=died.exit_code, said=last_words)) from died

    async def _ready(
        self, kind: ExternalKind, phase: str, on_progress: Callable[[str, float], None] | None
    ) -> None:
        started_at = time.monotonic()
        while (waited := time.monotonic() - started_at) < kind.ready_s:
            assert self._process is not None
            if self._process.returncode is not None:
                raise ExternalFailed(self._not_started("external_ended", kind, code=self._process.returncode))
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(LAST_WORDS_S):
                    # If the program has ended, another process may reply at its port.
                    if await self._own.answers(kind.health) and self._process.returncode is None:
                        return
            if on_progress is not None:
                on_progress(phase, min(0.95, waited / kind.ready_s))
            await asyncio.sleep(LOOK_EVERY_S)
        raise ExternalFailed(self._not_started("external_silent", kind, seconds=kind.ready_s))

    def _not_started(self, what: str, kind: ExternalKind, **values: float) -> Reason:
        reason = because(what, engine=self._title, said=self._last_lines(), **values)
        return because("external_advice", what=reason, advice=kind.advice) if kind.advice else reason

    async def _read(self, process: asyncio.subprocess.Process) -> None:
        assert process.stdout is not None
        with contextlib.suppress(ValueError):  # a line beyond the reader's limit: the rest is not stored
            async for line in process.stdout:
                if text := line.decode("utf-8", "replace").strip():
                    self._lines.append(text[:_MOST_LINE])
                    self.buffers.read(text)
        while await process.stdout.read(1 << 16):
            pass
        await process.wait()

    def _last_lines(self) -> str:
        errors = [line for line in self._lines if "error" in line.lower()]
        return (errors or list(self._lines) or ["it said nothing"])[-1]

    async def stop(self) -> None:
        """Stop the program, and wait until its memory is free."""
        self.kill()
        self._link.close()
        if self._process is not None:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._process.wait(), END_S)

    def kill(self) -> None:
        """Close its input so that the guard ends it; does not wait."""
        self._stopped = self._stopping = True
        if self._process is not None and self._process.stdin is not None:
            self._process.stdin.close()
