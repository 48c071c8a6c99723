"""Dry runs: llama.cpp itself, in a child process, reports the memory that a load needs."""

import hashlib
import logging
import os
import sys
from pathlib import Path

import msgspec

from devices.backends.libraries import library_folder
from devices.child import run_child
from devices.child_command import child_command
from devices.llama_cpp_versions.folder import child_variables, chosen_version
from devices.msgspec_lock import learned
from engine.core.errors import EnvironmentFault
from engine.core.json_store import JsonStore, with_row
from engine.core.version import __version__
from engine.message_catalog.reasons import because
from engine.placement.types import DryRun
from engine.runner.protocol import LoadSettings

log = logging.getLogger(__name__)
# A header with 250,000 tokens takes a second; a cold disk and antivirus take the rest.
TIMEOUT_S = 30.0
MAX_ENTRIES = 400
GLIBC = "CS_GNU_LIBC_VERSION"
# Settings that change no number of a dry run; all others are part of its key. Files other than the model's are
# counted by formulas.
UNRELATED = frozenset({
    "path", "max_ctx", "chosen_ctx", "n_threads", "n_threads_batch", "expert_bytes", "use_mmap", "use_mlock",
    "lazy_tables", "max_draft", "lora", "draft_path", "mmproj_path", "projector_on_cpu", "provider",
    "allow_fallback", "external", "gpu_frac", "cache_dir", "cache_ram_bytes", "cache_disk_bytes", "reference_path",
    "deep_from", "deep_rows", "recorded_rows", "num_faults",
})  # fmt: skip


class DryRunFailed(EnvironmentFault):
    """llama.cpp rejected the file or the settings, crashed or hung; the message says which."""


def dry_run(settings: LoadSettings, cache: Path | None = None, timeout_s: float = TIMEOUT_S) -> DryRun:
    """Memory that llama.cpp needs for these settings.

    Results are cached in `cache` by file, settings, build and interpreter.
    Raises: DryRunFailed.
    """
    try:
        key = _key(settings)
        stored = _read(cache) if cache else {}
    except OSError as error:
        raise DryRunFailed(str(error)) from error
    if key in stored:
        return stored[key]
    argv = child_command("engine.runner.llama.memory_probe", msgspec.json.encode(settings).decode())
    outcome = run_child(argv, timeout_s, child_variables(settings.path))
    if outcome.answer is None:
        raise DryRunFailed(outcome.reason)
    try:
        result = msgspec.convert(outcome.answer, learned(DryRun))
    except msgspec.ValidationError as error:
        raise DryRunFailed(because("probe_unreadable", why=str(error))) from error
    if cache is not None:
        _write(cache, key, result)
    return result


def _key(settings: LoadSettings) -> str:
    related = (name for name in settings.__struct_fields__ if name not in UNRELATED)
    facts: list[object] = [(name, getattr(settings, name)) for name in related]
    facts.append(("version", chosen_version(settings.path)))
    libc = os.confstr(GLIBC) if GLIBC in getattr(os, "confstr_names", ()) else None
    facts.append((__version__, sys.version, libc))
    folder = library_folder()
    for path in (Path(settings.path), *(sorted(folder.glob("*llama*")) if folder else ())):
        try:
            status = path.stat()
            facts.append((str(path), status.st_size, status.st_mtime_ns))
        except OSError:
            facts.append(str(path))
    return hashlib.sha256(repr(facts).encode()).hexdigest()


def _read(cache: Path) -> dict[str, DryRun]:
    return JsonStore(cache, dict[str, DryRun], dict, durable=False).get()


def _write(cache: Path, key: str, result: DryRun) -> None:
    try:
        JsonStore(cache, dict[str, DryRun], dict, durable=False).change(
            lambda old: dict(list(with_row(old, key, result).items())[-MAX_ENTRIES:])
        )
    except OSError as error:
        log.info("dry runs are not kept: %s", error)
