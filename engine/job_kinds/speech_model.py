"""The job `fetch`, which downloads the speech model with the same code as `start.py speech`."""

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any, Final

import msgspec

from devices.atomic_file import folder_bytes
from devices.child import kill_group, spawn
from devices.child_command import interpreter
from devices.environment import without_secrets
from engine.core.errors import EnvironmentFault
from engine.core.paths import installed_speech
from engine.jobs.jobs import JobContext, JobKind, JobRegistry, params_of
from engine.message_catalog.reasons import because

DOWNLOAD_BYTES: Final = 80_000_000
_ROOT: Final = Path(__file__).resolve().parents[2]
_LOCK: Final = _ROOT / "installers" / "lock" / "speech.txt"
_POLL_S: Final = 0.3
# Folders of unfinished downloads. Source: installers/bootstrap/speech.py.
_UNFINISHED: Final = "fetch-*"


class FetchSpeech(msgspec.Struct, frozen=True):
    """Download the speech model."""


class SpeechModelMissing(EnvironmentFault):
    """The speech model could not be downloaded."""

    code = "speech_model_missing"


def register(registry: JobRegistry) -> None:
    """Register the kind `fetch`."""
    registry.register(JobKind.FETCH, _run, read=params_of(FetchSpeech))


def can_fetch() -> bool:
    """True if this installation can download the speech model: one from source can, a package cannot."""
    return _LOCK.is_file() and not getattr(sys, "frozen", False)


def _run(_: FetchSpeech, control: JobContext) -> dict[str, Any]:
    folder = installed_speech()
    if not can_fetch():
        raise SpeechModelMissing(because("speech_not_fetched", why=because("no_installer")))
    if os.environ.get("HF_HUB_OFFLINE", "").lower() in {"1", "true", "yes", "on"}:
        raise SpeechModelMissing(because("speech_not_fetched", why=because("offline")))
    (python,) = interpreter()
    command = [python, "-m", "installers.bootstrap.speech", python, str(_LOCK), str(folder)]
    environment = without_secrets({"PYTHONPATH": str(_ROOT)})
    pip = {name: value for name, value in os.environ.items() if name.startswith("PIP_")}
    process = spawn(
        command,
        {**environment, **pip},
        cwd=_ROOT,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        start_new_session=True,
    )
    try:
        while process.poll() is None:
            control.wait(_POLL_S)
            num_fetched = sum(map(folder_bytes, folder.glob(_UNFINISHED)))
            control.report("fetching", min(num_fetched, DOWNLOAD_BYTES), DOWNLOAD_BYTES)
        assert process.stderr is not None
        lines = process.stderr.read().decode("utf-8", "replace").strip().splitlines()
    finally:
        if process.poll() is None:
            kill_group(process.pid)
        process.wait()
        assert process.stderr is not None
        process.stderr.close()
        for unfinished in folder.glob(_UNFINISHED):
            shutil.rmtree(unfinished, ignore_errors=True)
    if process.returncode:
        raise SpeechModelMissing(because("speech_not_fetched", why=lines[-1][:300] if lines else ""))
    return {"path": str(folder)}
