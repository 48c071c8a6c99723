"""Run one probe child under a time limit and say, in every case, how it ended."""

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from devices.child_answer import answer_in
from devices.environment import without_secrets
from devices.process_memory import bound_memory, cpu_seconds

STDERR_CHARACTERS = 400
# A child that computes but gets little of a busy processor is waited for this much longer than the limit.
PATIENCE = 6
STEP_S = 2.0
# Less than this share of a step means that it waits for something, such as a driver that hangs.
LEAST_FRACTION = 0.005


class Outcome(msgspec.Struct, frozen=True):
    """`answer` is the child's JSON; `reason` says why there is none."""

    answer: Mapping[str, Any] | None
    reason: str
    seconds: float


def run_child(argv: Sequence[str], timeout_s: float, env: Mapping[str, str] | None = None) -> Outcome:
    """Start `argv`, wait `timeout_s`, and kill its whole process tree if it is still there.

    On a busy machine one that has had less than `timeout_s` of processor time and continues computing has longer.
    """
    started = time.monotonic()
    flags: dict[str, Any] = {"start_new_session": True}
    if sys.platform == "win32":
        flags = {"creationflags": subprocess.CREATE_NEW_PROCESS_GROUP | subprocess.CREATE_NO_WINDOW}
    try:
        process = subprocess.Popen(
            list(argv),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=without_secrets(env),
            **flags,
        )
    except OSError as error:
        return Outcome(None, f"it could not be started: {error.strerror}", time.monotonic() - started)
    bound_memory(process.pid)
    try:
        stdout, stderr = _output(process, timeout_s)
    except subprocess.TimeoutExpired:
        kill_tree(process)
        return Outcome(None, f"it gave no answer within {timeout_s:g} s", time.monotonic() - started)
    answer = answer_in(stdout)
    reason = _failure(process.returncode, answer, stderr)
    return Outcome(None if reason else answer, reason, time.monotonic() - started)


def _output(process: "subprocess.Popen[bytes]", timeout_s: float) -> tuple[bytes, bytes]:
    """What it wrote, once it ended. Raises: TimeoutExpired."""
    end = time.monotonic() + PATIENCE * timeout_s
    try:
        return process.communicate(timeout=timeout_s)
    except subprocess.TimeoutExpired:
        spent, step_s = cpu_seconds(process.pid), min(STEP_S, timeout_s)
        while spent is not None and spent < timeout_s and time.monotonic() < end:
            with contextlib.suppress(subprocess.TimeoutExpired):
                return process.communicate(timeout=step_s)
            before, spent = spent, cpu_seconds(process.pid)
            if spent is not None and spent - before < LEAST_FRACTION * step_s:
                break
        raise


def _failure(code: int, answer: Mapping[str, Any] | None, stderr: bytes) -> str:
    """Why the child gave no usable answer; empty when it did."""
    if code < 0:
        return f"it was killed by {_signal_name(-code)}{_tail(stderr)}"
    if answer is None:
        return f"it ended with code {code} and no answer{_tail(stderr)}"
    if "error" in answer:
        return str(answer["error"]) or "it failed without saying why"
    return f"it ended with code {code}{_tail(stderr)}" if code else ""


def kill_tree(process: "subprocess.Popen[bytes]") -> None:
    """Kill a child and everything it started, and reap it."""
    if sys.platform == "win32":
        import psutil  # noqa: PLC0415 - only where there are no process groups

        try:
            for child in psutil.Process(process.pid).children(recursive=True):
                child.kill()
        except psutil.Error:
            pass
        process.kill()
    else:
        try:
            os.killpg(process.pid, signal.SIGKILL)
        except (ProcessLookupError, PermissionError):
            process.kill()
    try:  # a grandchild outside the group may still hold the pipes
        process.communicate(timeout=1)
    except subprocess.TimeoutExpired:
        for pipe in (process.stdout, process.stderr):
            if pipe is not None:
                pipe.close()


def kill_group(pid: int) -> None:
    """Kill a process that leads a session of its own, and everything in it."""
    if sys.platform == "win32":
        import psutil  # noqa: PLC0415 - only where there are no process groups

        try:
            process = psutil.Process(pid)
            for child in [*process.children(recursive=True), process]:
                child.kill()
        except psutil.Error:
            pass
        return
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, signal.SIGKILL)


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def _tail(stderr: bytes) -> str:
    lines = stderr.decode("utf-8", "replace").strip().splitlines()
    return f": {lines[-1][-STDERR_CHARACTERS:]}" if lines else ""
