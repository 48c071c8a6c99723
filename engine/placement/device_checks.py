"""Records of devices compared with the CPU, their results, and the CPU references."""

import contextlib
import hashlib
import logging
import os
import time
from pathlib import Path
from typing import Final

import msgspec

from devices.backends.backend_probe import BOOT_ID
from devices.backends.libraries import library_folder
from devices.child import run_child
from devices.child_command import child_command
from devices.kernel_packs.folder import installed_libraries
from devices.types import Machine
from engine.core.json_store import JsonStore, with_row
from engine.core.types import DeviceCheck
from engine.placement.shape import ModelShape
from engine.runner.engine_args import meaning
from engine.runner.protocol import LoadSettings

log = logging.getLogger(__name__)
MAX_ENTRIES: Final = 200
# Increase it when a load compares more than before: devices are compared again.
CHECKS: Final = 4
# Most sequences in one batch of a comparison (WIDEST in engine/runner/llama/native/scenarios.py).
CHECKED_SEQUENCES: Final = 16
# Reads weights back from the device a few dozen times: takes seconds for models that fit a laptop.
OPERATIONS_TIMEOUT_S: Final = 90.0
# A CPU reads about 150 tokens twice. This takes seconds for models that fit a laptop, minutes for the largest.
REFERENCE_TIMEOUT_S: Final = 180.0
# A smaller batch than this shortens the texts of a comparison, which have 74 tokens.
SHORT_BATCH: Final = 128
SUSPENDS: Final = Path("/sys/power/suspend_stats/success")


class DeviceCheckRecord(msgspec.Struct, frozen=True, kw_only=True):
    """Result of comparing a device with the CPU for models of one kind; `checked_at` is in seconds since the epoch.

    `what` names device and features; `reason` says why it is wrong and is empty if it is right. `operations`
    describes the single operations that differ. `deep_at`: when long texts were compared, and all batches like the
    server's; 0: not yet. `check` is of the comparison at a load; None: only that of long texts was made, after a
    resume or without a reference.
    """

    what: str
    wrong: bool
    checked_at: float
    reason: str = ""
    operations: str = ""
    check: DeviceCheck | None = None
    deep_at: float = 0.0

    @property
    def is_partial(self) -> bool:
        """Whether a load was too short for some of the batches, and they were not compared since."""
        return self.check is not None and bool(self.check.omitted) and not self.deep_at


class DeviceChecks:
    """A JSON file of results, keyed by everything that a device's results depend on. Thread-safe."""

    def __init__(self, path: Path | None, references: Path | None) -> None:
        self._references = references
        self._store: JsonStore[dict[str, DeviceCheckRecord]] = JsonStore(
            path, dict[str, DeviceCheckRecord], dict, durable=False
        )

    def verdict(self, settings: LoadSettings, shape: ModelShape, machine: Machine) -> DeviceCheckRecord | None:
        """The recorded result for these settings; None if they were not compared, or run on the CPU alone."""
        key = check_key(settings, shape, machine)
        return self._store.get().get(key) if key else None

    def record_deep(
        self,
        settings: LoadSettings,
        shape: ModelShape,
        machine: Machine,
        wrong_because: str = "",
        check: DeviceCheck | None = None,
    ) -> None:
        """Store that long texts were compared; `wrong_because`: they differ."""
        key = check_key(settings, shape, machine)

        def changed(old: dict[str, DeviceCheckRecord]) -> dict[str, DeviceCheckRecord]:
            if key is None:
                return old
            now = time.time()
            verdict = old.get(key) or DeviceCheckRecord(what=describe(settings), wrong=False, checked_at=now)
            verdict = msgspec.structs.replace(verdict, deep_at=now)
            if wrong_because:
                verdict = msgspec.structs.replace(
                    verdict, wrong=True, reason=wrong_because, check=check or verdict.check, checked_at=now
                )
            return _newest(with_row(old, key, verdict))

        with contextlib.suppress(OSError):  # on failure they are compared again
            self._store.change(changed)

    def wrong(self) -> list[DeviceCheckRecord]:
        """The wrong results found on this computer, newest first."""
        verdicts = [verdict for verdict in self._store.get().values() if verdict.wrong]
        return sorted(verdicts, key=lambda verdict: -verdict.checked_at)

    def forget_wrong(self) -> None:
        """Delete the recorded faults, so that the next load compares again. Raises: OSError."""
        self._store.change(lambda old: {key: one for key, one in old.items() if not one.wrong})

    def to_compare(self, settings: LoadSettings, shape: ModelShape, machine: Machine) -> LoadSettings:
        """The settings, with a CPU reference if the device must be compared. Computes a missing reference."""
        key = check_key(settings, shape, machine)
        if key is None or self._references is None:
            return settings
        verdict = self._store.get().get(key)
        if verdict is not None and (verdict.wrong or verdict.check is not None):
            return settings
        target = self._references / f"{_reference_name(settings)}.msgpack"
        if not target.exists():
            started = time.monotonic()
            argv = child_command(
                "engine.runner.llama.reference_child", msgspec.json.encode(settings).decode(), str(target)
            )
            outcome = run_child(argv, REFERENCE_TIMEOUT_S)
            if outcome.answer is None:
                log.warning("no reference for %s: %s", settings.path, outcome.reason)
                return settings
            log.info("reference of %s computed in %.1f s", settings.path, time.monotonic() - started)
            _keep_newest(self._references)
        return msgspec.structs.replace(settings, reference_path=str(target))

    def wrong_operations(self, settings: LoadSettings) -> tuple[str, frozenset[str]]:
        """Operations whose results differ from the CPU's: as text, and by ggml's names.

        Both are empty if no single operation differs, or if the child that compares them crashed or hung.
        """
        argv = child_command("engine.runner.llama.operations_child", msgspec.json.encode(settings).decode())
        outcome = run_child(argv, OPERATIONS_TIMEOUT_S)
        if outcome.answer is None:
            log.warning("operations of %s were not compared: %s", describe(settings), outcome.reason)
            return "", frozenset()
        return str(outcome.answer.get("wrong", "")), frozenset(map(str, outcome.answer.get("kinds", ())))

    def record(
        self,
        settings: LoadSettings,
        shape: ModelShape,
        machine: Machine,
        check: DeviceCheck | None,
        wrong_because: str = "",
        operations: str = "",
    ) -> None:
        """Store the result of a comparison."""
        key = check_key(settings, shape, machine)
        if key is None or (check is None and not wrong_because):
            return
        verdict = DeviceCheckRecord(
            what=describe(settings),
            wrong=bool(wrong_because),
            reason=wrong_because,
            operations=operations,
            check=check,
            checked_at=time.time(),
        )

        def changed(old: dict[str, DeviceCheckRecord]) -> dict[str, DeviceCheckRecord]:
            deep_at = old[key].deep_at if key in old else 0.0
            return _newest(with_row(old, key, msgspec.structs.replace(verdict, deep_at=deep_at)))

        with contextlib.suppress(OSError):  # on failure the next start compares again
            self._store.change(changed)


def _newest(verdicts: dict[str, DeviceCheckRecord]) -> dict[str, DeviceCheckRecord]:
    return dict(list(verdicts.items())[-MAX_ENTRIES:])


def describe(settings: LoadSettings) -> str:
    """Device and features, such as `Vulkan0, flash attention, q8_0 cache`."""
    parts = [", ".join(settings.devices)]
    if settings.flash_attn != "off":
        parts.append("flash attention")
    if (settings.type_k, settings.type_v) != ("f16", "f16"):
        parts.append(f"{settings.type_k}/{settings.type_v} cache")
    return ", ".join(parts)


def check_key(settings: LoadSettings, shape: ModelShape, machine: Machine) -> str | None:
    """Key of everything that a device's results depend on; None if only the CPU computes.

    It has device, driver with Mesa and firmware, kernel, libraries, visibility settings, boot and suspends; the
    model's architecture, widths and types; attention, cache types, whether layers stay on the CPU, weights are
    mapped, drafts are verified and images are read.
    """
    if not settings.devices or not settings.n_gpu_layers or settings.embeddings or settings.provider:
        return None
    facts: list[object] = [CHECKS, settings.devices, settings.flash_attn, settings.type_k, settings.type_v]
    facts += [settings.variables] if settings.variables else []
    facts += [
        bool(settings.cpu_expert_layers),
        settings.engine_args,
        settings.n_ubatch,
        settings.n_batch,
        min(settings.n_parallel, CHECKED_SEQUENCES),
        0 <= settings.n_gpu_layers <= len(shape.layers),
        settings.use_mmap,  # some drivers read mapped weights wrongly
        settings.max_draft > 0,
        settings.max_rollback > 0,
        settings.mmproj_path is not None,
        settings.projector_on_cpu,
    ]
    facts += [shape.architecture, shape.embedding, shape.heads, shape.attention, shape.feed_forward, shape.experts]
    facts += sorted({tensor.ggml_type.name for tensor in shape.tensors})
    owners = [d for d in machine.devices for r in d.runtimes if r.device_name in settings.devices]
    facts += [(d.id, d.driver, d.driver_version) for d in owners]
    facts += [machine.versions, machine.kernel, machine.arch, _text(Path(BOOT_ID)), _text(SUSPENDS)]
    for paths in installed_libraries(library_folder()).values():
        facts += [_status(path) for path in paths]
    prefixes = ("GGML_", "VK_", "HIP_", "ROCR_", "CUDA_", "HSA_", "ZE_", "ONEAPI_", "MESA_", "RADV_")
    facts += sorted((k, v) for k, v in os.environ.items() if k.startswith(prefixes))
    return hashlib.sha256(repr(facts).encode()).hexdigest()


def _reference_name(settings: LoadSettings) -> str:
    """Name that changes with the file, the cache types and the libraries that compute the reference."""
    facts = [_status(Path(settings.path)), settings.path, settings.type_k, settings.type_v, settings.n_ctx]
    facts += meaning(settings.engine_args)
    facts += ["single"] if settings.max_draft == 0 else []
    facts += [settings.n_batch] if settings.n_batch < SHORT_BATCH else []
    facts += [_status(path) for path in installed_libraries(library_folder()).get("cpu", ())]
    return hashlib.sha256(repr(facts).encode()).hexdigest()[:32]


def _status(path: Path) -> tuple[object, ...]:
    try:
        status = path.stat()
    except OSError:
        return (path.name,)
    return (path.name, status.st_size, status.st_mtime_ns)


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="ascii").strip()
    except (OSError, UnicodeDecodeError):
        return ""


def _keep_newest(folder: Path) -> None:
    """Delete old references; each takes about 0.1 MiB."""
    with contextlib.suppress(OSError):
        files = sorted(folder.glob("*.msgpack"), key=lambda path: path.stat().st_mtime)
        for path in files[:-MAX_ENTRIES]:
            path.unlink(missing_ok=True)
