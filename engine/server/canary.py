"""The canary: rows of real answers are computed again on the CPU while nothing runs, as long as a model is loaded.

A runner records one of some hundred rows with the text before it. A child at the lowest priority computes them with
llama.cpp's plain CPU kernels. It may take FRACTION of the time that models computed, measured in seconds, and ends
as soon as a request arrives. If the rows differ, and differ again from a computation with other kernels, the
settings that gave them are not used any more (engine/placement/quarantine.py).
"""

import asyncio
import contextlib
import logging
import os
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final

import msgspec

from devices.battery import is_unplugged
from devices.child_command import child_command
from devices.errors import TesseraError
from devices.frames import LENGTH
from devices.llama_cpp_versions.folder import child_variables
from devices.msgspec_lock import learned
from devices.process_memory import bound_memory
from engine.api.machine import CanaryState
from engine.core.types import DeviceCheck
from engine.message_catalog import sentence
from engine.message_catalog.reasons import Reason, because
from engine.placement.placer import Placer, read_shape
from engine.placement.quarantine import CanaryAccount, canary_account, quarantine
from engine.placement.types import WrongAnswers
from engine.pool.loaded_model import LoadedModel, Runner
from engine.pool.pool import Pool
from engine.runner.process import RunnerProcess, runner_environment
from engine.runner.protocol import LoadSettings, Recompute, RowsRecorded, RowVerdict

log = logging.getLogger(__name__)
# Maximum share of the time that models computed.
FRACTION: Final = 0.005
# A row costs 2 ms to record with 150,000 tokens of vocabulary: less than a thousandth of the steps between two.
EVERY: Final = 256
# A user who reads or types sends no request for longer than this.
IDLE_S: Final = 5.0
BATTERY_S: Final = 60.0
WATCH_S: Final = 0.1
LONGEST_S: Final = 120.0
WAITING: Final = 8
MAX_FOUND: Final = 50
MAX_FACTORS: Final = 100
# First estimate of a child's seconds: to start and map the file, and for each token. Measured times replace it. A
# CPU multiplies about 25 billion weights a second; a byte of a file has about two.
START_S: Final = 1.0
BYTES_PER_S: Final = 2e9
TOKEN_BYTES_PER_S: Final = 12e9
# The CPU maps the whole file; it must not push other programs out of memory.
SPARE_BYTES: Final = 1 << 30
SAVE_S: Final = 60.0


@dataclass(eq=False)
class Watched:
    """One load whose rows are recorded; answers since `right_at` (seconds since the epoch) were not compared."""

    model: LoadedModel
    runner: Runner
    settings: LoadSettings
    right_at: float
    steps_s: float = 0.0
    recording_s: float = 0.0


class Canary:
    """Compares rows of answers with the CPU. The results are stored in the folder `state` (None: in memory)."""

    def __init__(self, pool: Pool, placer: Placer, state: Path | None, *, enabled: bool = True) -> None:
        self._pool, self._placer = pool, placer
        self.enabled = enabled
        self._store = canary_account(state)
        self._unsaved_s = self._unpaid_s = 0.0  # seconds of computing and of recording since the file was written
        self._waiting: deque[tuple[Watched, RowsRecorded]] = deque(maxlen=WAITING)
        self._news: dict[str, list[str]] = {}
        self._recorded = asyncio.Event()
        self.waits: Callable[[], bool] = lambda: False
        pool.hooks.watch_rows = self.watch

    def state(self) -> CanaryState:
        """Results of the comparisons so far."""
        now = self._store.get()
        return CanaryState(
            enabled=self.enabled,
            answers=now.answers,
            rows=now.rows,
            computing_s=round(now.computing_s + self._unsaved_s, 1),
            spent_s=round(now.spent_s, 1),
            checked_at=now.checked_at,
            waiting=len(self._waiting),
            found=now.found,
        )

    def watch(self, model: LoadedModel, runner: Runner, settings: LoadSettings) -> LoadSettings:
        """Settings of a load; records rows if the CPU can compute them in a way different from the load's."""
        model.news += self._news.pop(model.id, [])
        settings = msgspec.structs.replace(settings, num_faults=len(self._store.get().found))
        if not self.enabled or not isinstance(runner, RunnerProcess) or not comparable(settings):
            return settings
        runner.on_rows_recorded = partial(self._take, Watched(model, runner, model.settings, time.time()))
        return msgspec.structs.replace(settings, recorded_rows=EVERY)

    def _take(self, watched: Watched, recorded: RowsRecorded) -> None:
        """Store rows that a runner sent, and the time of its steps: a comparison may take a share of that time."""
        self._unsaved_s += max(0.0, recorded.steps_s - watched.steps_s)
        self._unpaid_s += max(0.0, recorded.recording_s - watched.recording_s)
        watched.steps_s, watched.recording_s = recorded.steps_s, recorded.recording_s
        self._waiting.append((watched, recorded))
        self._recorded.set()

    async def run(self) -> None:
        """Compare recorded rows until cancelled."""
        while True:
            await self._recorded.wait()
            self._recorded.clear()
            if self._unsaved_s >= SAVE_S:
                await asyncio.to_thread(self._spend, 0.0)
            while (chosen := await asyncio.to_thread(self._affordable, list(self._waiting))) is not None:
                await self._idle()
                try:
                    await self._compare(*chosen)
                except (TesseraError, OSError) as error:  # the file is missing, or no process starts
                    log.info("model=%s was not compared: %s", chosen[0].model.id, error)
                    self._drop(chosen)

    def _drop(self, chosen: tuple[Watched, RowsRecorded]) -> None:
        with contextlib.suppress(ValueError):  # newer rows took its place
            self._waiting.remove(chosen)

    async def _idle(self) -> None:
        """Wait until the server is idle: no request for IDLE_S, no job, mains power, no quiet mode."""
        while True:
            await asyncio.sleep(IDLE_S)
            used = max((model.last_used for model in self._pool.loaded), default=0.0)
            if self._pool.busy or time.monotonic() - used < IDLE_S:
                continue
            if not self.waits() and not await asyncio.to_thread(is_unplugged):
                return
            await asyncio.sleep(BATTERY_S)

    def _budget_s(self, recorded: RowsRecorded) -> float:
        """Seconds for a comparison. A result that is not a number cannot wait until they are earned."""
        now = self._store.get()
        earned_s = FRACTION * (now.computing_s + self._unsaved_s)
        credit_s = LONGEST_S if recorded.is_undefined else 0.0
        return min(LONGEST_S, earned_s + credit_s - now.spent_s - self._unpaid_s)

    def _affordable(self, waiting: list[tuple[Watched, RowsRecorded]]) -> tuple[Watched, RowsRecorded] | None:
        """The longest of the waiting texts whose comparison fits the time account and the memory.

        Those that ended with a result that is not a number precede the others.
        """
        for chosen in sorted(waiting, key=lambda each: (not each[1].is_undefined, -len(each[1].tokens))):
            watched, recorded = chosen
            try:
                size = read_shape(watched.settings.path).file_bytes
            except (TesseraError, OSError):  # the file is gone; newer rows take its place
                continue
            factor = self._store.get().factors.get(watched.model.id, 1.0)
            if factor * expected_s(size, len(recorded.tokens)) > self._budget_s(recorded):
                continue
            free = self._placer.machine_now().memory.available_bytes
            if free is None or size + SPARE_BYTES <= free:
                return chosen
        return None

    async def _compare(self, watched: Watched, recorded: RowsRecorded) -> None:
        started_at, limit_s = time.monotonic(), self._budget_s(recorded)
        verdict = await self._verdict(watched.settings, recorded, limit_s)
        spent_s = time.monotonic() - started_at
        size = (await asyncio.to_thread(read_shape, watched.settings.path)).file_bytes
        expected = expected_s(size, len(recorded.tokens))
        if verdict is not None or not self._is_busy():  # too slow, or it failed: not tried again with these rows
            self._drop((watched, recorded))
        counted = verdict is not None
        factor = spent_s / expected if counted or spent_s >= limit_s else None
        await asyncio.to_thread(
            self._spend, spent_s, watched.model.id, factor, len(recorded.rows) if counted else 0
        )
        if verdict is None:
            return
        log.info("model=%s rows=%d nats=%.2g s=%.1f", watched.model.id, len(recorded.rows), verdict.nats, spent_s)
        if verdict.wrong:
            await self._quarantine(watched, recorded, verdict)
        else:
            watched.right_at = time.time()

    def _is_busy(self) -> bool:
        return self._pool.busy or self.waits()

    async def _verdict(self, settings: LoadSettings, recorded: RowsRecorded, limit_s: float) -> RowVerdict | None:
        """The child's result; None if it failed, took too long, or was stopped for a request."""
        body = msgspec.msgpack.encode(Recompute(settings=settings, recorded=recorded, threads=idle_threads()))
        ended = await output_while_idle(
            child_command("engine.runner.llama.recompute_child", str(os.getpid())),
            settings.path,
            self._is_busy,
            limit_s,
            LENGTH.pack(len(body)) + body,
        )
        if ended is None:
            return None
        answer = ended[0][LENGTH.size :]
        try:
            return msgspec.json.decode(answer, type=learned(RowVerdict))
        except msgspec.DecodeError:
            log.info("rows of %s were not compared: %r", settings.path, answer[:200])
            return None

    def _spend(self, spent_s: float, model_id: str = "", factor: float | None = None, rows: int = 0) -> None:
        """Write the account, with the time that models computed since the last time; `rows` were compared."""
        computed_s, self._unsaved_s = self._unsaved_s, 0.0
        recording_s, self._unpaid_s = self._unpaid_s, 0.0

        def changed(now: CanaryAccount) -> CanaryAccount:
            factors = now.factors if factor is None else {**now.factors, model_id: factor}
            return msgspec.structs.replace(
                now,
                computing_s=now.computing_s + computed_s,
                spent_s=now.spent_s + spent_s + recording_s,
                answers=now.answers + bool(rows),
                rows=now.rows + rows,
                checked_at=time.time() if rows else now.checked_at,
                factors=dict(list(factors.items())[-MAX_FACTORS:]),
            )

        with contextlib.suppress(OSError):
            self._store.change(changed)

    def report(self, wrong: WrongAnswers, why: Reason | str) -> None:
        """Store answers that may be wrong; the window marks them, and the next answer of the model has a note."""
        with contextlib.suppress(OSError):
            self._store.change(lambda now: msgspec.structs.replace(now, found=(*now.found, wrong)[-MAX_FOUND:]))
        self._news.setdefault(wrong.model, []).append(sentence(because("canary_note", why=why)))

    async def _quarantine(self, watched: Watched, recorded: RowsRecorded, verdict: RowVerdict) -> None:
        """Stop using these settings, inform the user, and load the model with the next choice."""
        settings, model_id = watched.settings, watched.model.id
        self._waiting = deque((each for each in self._waiting if each[0] is not watched), maxlen=WAITING)
        why = reason_of(settings, recorded, verdict)
        check = DeviceCheck(
            rows=len(recorded.rows),
            kld_mean=verdict.nats,
            kld_max=verdict.largest_nats,
            top_changed_frac=0.0,
            logprob_difference=0.0,
        )
        log.warning("model=%s: %s", model_id, sentence(why))
        try:
            shape = await asyncio.to_thread(read_shape, settings.path)
            rule = await asyncio.to_thread(
                quarantine, self._placer.resources, model_id, settings, shape, why, check, sentence
            )
        except (TesseraError, OSError) as error:
            log.warning("model=%s keeps its settings: %s", model_id, error)
            return
        wrong = wrong_answers(
            model_id,
            settings,
            since=watched.right_at,
            reason=sentence(why),
            rule=rule,
            tokens=len(recorded.tokens),
            rows=len(recorded.rows),
            batch_rows=tuple(row.batch_rows for row in recorded.rows),
            sequences=tuple(row.sequences for row in recorded.rows),
            nats=verdict.nats,
            largest_nats=verdict.largest_nats,
            again_nats=verdict.again_nats,
            noise_nats=verdict.noise_nats,
        )
        self.report(wrong, why)
        model = watched.model
        if self._pool.get(model_id) is model and model.runner is watched.runner:
            model.pending = ("device",)  # if a request came meanwhile, the model is loaded again after it
            await self._pool.load_again(model)


def wrong_answers(model_id: str, settings: LoadSettings, **facts: Any) -> WrongAnswers:
    """Answers of a load with these settings that were found to be wrong now; `facts` are the other fields."""
    return WrongAnswers(
        model=model_id,
        found_at=time.time(),
        devices=settings.devices,
        n_ubatch=settings.n_ubatch,
        n_parallel=settings.n_parallel,
        cache_types=(settings.type_k, settings.type_v),
        flash_attn=settings.flash_attn,
        **facts,
    )


def reason_of(settings: LoadSettings, recorded: RowsRecorded, verdict: RowVerdict) -> Reason:
    """Why these settings are no longer used."""
    tokens, devices = len(recorded.tokens), settings.devices
    if recorded.is_undefined:
        own = because("canary_undefined_own", tokens=tokens)
        return because("canary_undefined", devices=devices, tokens=tokens) if devices else own
    own = because("canary_differs_own", tokens=tokens, nats=verdict.nats)
    return because("canary_differs", devices=devices, tokens=tokens, nats=verdict.nats) if devices else own


def idle_threads() -> int:
    """Threads of a comparison that runs while the server is idle."""
    return max(1, (os.cpu_count() or 2) // 2)


async def output_while_idle(
    command: Sequence[str], path: str, is_busy: Callable[[], bool], limit_s: float, body: bytes = b""
) -> tuple[bytes, int | None] | None:
    """Output and exit code of a child that computes with the model at `path`; `body` is its input.

    None if the child was killed, because `is_busy` became true or it took longer than `limit_s`.
    """
    process = await asyncio.create_subprocess_exec(
        *command,
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.DEVNULL,
        env=runner_environment(child_variables(path)),
    )
    bound_memory(process.pid)
    reply = asyncio.ensure_future(process.communicate(body))
    ends = time.monotonic() + limit_s
    try:
        while not reply.done():
            await asyncio.wait({reply}, timeout=WATCH_S)
            if not reply.done() and (is_busy() or time.monotonic() > ends):
                return None
    finally:
        if process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                process.kill()
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            await reply
    return reply.result()[0], process.returncode


def comparable(settings: LoadSettings) -> bool:
    """Whether a load uses other than llama.cpp's plain CPU kernels, and the CPU can compute the same texts."""
    elsewhere = bool(settings.devices and settings.n_gpu_layers)
    own = elsewhere or bool(settings.tiles) or settings.repack
    hosted = settings.external is not None or bool(settings.remotes) or bool(settings.engine_args.rpc)
    return own and not hosted and not settings.embeddings and not settings.provider and not settings.expert_bytes


def expected_s(file_bytes: int, tokens: int) -> float:
    """First estimate of a comparison's seconds."""
    return START_S + file_bytes / BYTES_PER_S + tokens * file_bytes / TOKEN_BYTES_PER_S
