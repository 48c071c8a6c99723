"""vLLM on this computer as a runner: its server is started on loopback for one model, and ends with that model."""

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
from engine.message_catalog.reasons import because
from engine.placement.vllm import BACKEND, cache_gib
from engine.runner.protocol import LoadSettings
from engine.upstreams.errors import UpstreamFault
from engine.upstreams.link import UpstreamLink
from engine.upstreams.registry import UpstreamRegistry
from engine.upstreams.runner import Piece, UpstreamRunner
from engine.upstreams.types import Upstream
from engine.vllm.detect import describe, executable, folder_of

# Weights of a large model from a slow disk, its kernels compiled and its graphs captured.
READY_S: Final = 1200.0
LOOK_EVERY_S: Final = 0.25
# An answer that breaks off is blamed on vLLM's end if that shows within this time.
LAST_WORDS_S: Final = 3.0
# The guard's own limit and some: behind it the process is left to the guard.
END_S: Final = 15.0
_MAX_LINES: Final = 40
_MOST_LINE: Final = 400
_NAME: Final = "vllm"


class VllmFailed(EnvironmentFault):
    """vLLM is missing, or its server did not come up; the message says why and what to do."""

    code = "vllm_failed"


class _OwnLink(UpstreamLink):
    """The way to a server that was given its key by us, which nobody else learns."""

    def __init__(self, upstream: Upstream, registry: UpstreamRegistry, key: str) -> None:
        super().__init__(upstream, registry)
        self._own = {"authorization": f"Bearer {key}"}

    async def headers(self) -> dict[str, str]:
        return self._own


class VllmRunner(UpstreamRunner):
    """One `vllm serve` on a free port of loopback, and the way to it."""

    def __init__(self, path: str) -> None:
        self._folder = folder_of(path)
        self._port, self._key = free_port(), secrets.token_urlsafe(32)
        registry = UpstreamRegistry()
        upstream = registry.add(_NAME, f"http://127.0.0.1:{self._port}", "vllm")
        super().__init__(_OwnLink(upstream, registry, self._key), self._folder.name, registry)
        self._process: asyncio.subprocess.Process | None = None
        self._lines: deque[str] = deque(maxlen=_MAX_LINES)
        self._reading: asyncio.Task[None] | None = None
        self._stopping = False

    @property
    def pid(self) -> int | None:
        """The process that holds most memory: vLLM's engine, which is a child of its server."""
        return heaviest_descendant(self._process.pid) if self._process is not None else None

    @property
    def alive(self) -> bool:
        """Its process runs and was not told to end."""
        return super().alive and self._process is not None and self._process.returncode is None

    @property
    def died(self) -> RunnerDied | None:
        """How it ended by itself, if it did."""
        if self._stopping or self._process is None or self._process.returncode is None:
            return None
        return RunnerDied(
            self._process.returncode, because("vllm_ended_itself", said=self._last_words()), tuple(self._lines)
        )

    async def load(
        self, settings: LoadSettings, on_progress: Callable[[str, float], None] | None = None
    ) -> ModelFacts:
        """Start it and wait until it answers. Raises: VllmFailed, BadModelFile."""
        program = executable()
        if program is None:
            raise VllmFailed(because("vllm_not_installed"))
        command, environment = await asyncio.to_thread(self._command, program, settings)
        self._process = await asyncio.create_subprocess_exec(
            *child_command("engine.vllm.guard", *command),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
            env=without_secrets() | environment,
        )
        self._reading = asyncio.create_task(self._read(self._process))
        await self._ready(on_progress)
        facts = await super().load(settings)
        return msgspec.structs.replace(facts, description=f"{self._folder.name} (vLLM)", backend=BACKEND)

    async def generate(self, request: GenerationRequest) -> AsyncGenerator[Piece, None]:
        """The answer as it comes. Raises: VllmFailed: it ended in the middle; else as an upstream's."""
        try:
            async with aclosing(super().generate(request)) as events:
                async for event in events:
                    yield event
        except UpstreamFault:
            assert self._process is not None
            with contextlib.suppress(TimeoutError):  # that it ended may show after its connection did
                await asyncio.wait_for(self._process.wait(), LAST_WORDS_S)
            died = self.died
            if died is None:
                if self._stopped:  # nothing answers there any more: a new one takes its place
                    self.kill()
                raise
            raise VllmFailed(because("vllm_broke_off", said=self._last_words())) from died

    def _command(self, program: str, settings: LoadSettings) -> tuple[list[str], dict[str, str]]:
        command = [program, "serve", str(self._folder), "--host", "127.0.0.1", "--port", str(self._port)]
        command += ["--served-model-name", self._folder.name, "--max-model-len", str(settings.n_ctx)]
        # Nothing leaves this computer, and the server on loopback answers nobody but us.
        environment = {"HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1", "VLLM_API_KEY": self._key}
        kind, _, number = settings.provider.partition(":")
        if kind == "cuda":
            command += ["--gpu-memory-utilization", f"{settings.gpu_frac:.2f}"]
            environment |= {"CUDA_DEVICE_ORDER": "PCI_BUS_ID", "CUDA_VISIBLE_DEVICES": number}
        else:
            environment["VLLM_CPU_KVCACHE_SPACE"] = str(cache_gib(settings, describe(self._folder)))
        return command, environment

    async def _ready(self, on_progress: Callable[[str, float], None] | None) -> None:
        begun = time.monotonic()
        while (waited := time.monotonic() - begun) < READY_S:
            assert self._process is not None
            if self._process.returncode is not None:
                raise VllmFailed(because("vllm_ended", code=self._process.returncode, said=self._last_words()))
            if (await self._link.look()).state == "ok":
                return
            if on_progress is not None:
                on_progress("vllm", min(0.95, waited / READY_S))
            await asyncio.sleep(LOOK_EVERY_S)
        raise VllmFailed(because("vllm_silent", seconds=READY_S, said=self._last_words()))

    async def _read(self, process: asyncio.subprocess.Process) -> None:
        assert process.stdout is not None
        with contextlib.suppress(ValueError):  # a line beyond the reader's limit: what follows is not kept
            async for line in process.stdout:
                if text := line.decode("utf-8", "replace").strip():
                    self._lines.append(text[:_MOST_LINE])
        while await process.stdout.read(1 << 16):
            pass
        await process.wait()

    def _last_words(self) -> str:
        errors = [line for line in self._lines if "Error" in line]
        return (errors or list(self._lines) or ["it said nothing"])[-1]

    async def stop(self) -> None:
        """End it, and wait until its memory is free."""
        self.kill()
        self._link.close()
        if self._process is not None:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._process.wait(), END_S)

    def kill(self) -> None:
        """Its input ends, and the guard ends it; without waiting."""
        self._stopped = self._stopping = True
        if self._process is not None and self._process.stdin is not None:
            self._process.stdin.close()
