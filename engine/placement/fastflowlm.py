"""Finds FastFlowLM, the NPU that it sees, and its models, by running its program in a child."""

import json
import os
import subprocess
from functools import lru_cache
from pathlib import Path
from typing import Any, Final

import msgspec

from devices.environment import without_secrets
from devices.programs import installed_program
from devices.types import Finding, Machine

TIMEOUT_S: Final = 10.0
_MAX_OUTPUT: Final = 1 << 20
_MAX_TAG: Final = 100
_NAMED: Final = 6


# Facts of `flm validate --json`, and what to do if one is false. Source: FastFlowLM 0.9.46 and 1.0.5 as recorded by
# users (object npu_stack_validation), and its page on Linux.
_CHECKS: Final = {
    "amd_device_found": "no NPU of AMD answers (driver amdxdna, and amd_iommu must not be off)",
    "kernel_ok": "the kernel is too old (7.0, or the package amdxdna-dkms)",
    "all_fw_ok": "the NPU's firmware is older than 1.1 (newer linux-firmware)",
    "enough_cols": "this NPU has too few columns (XDNA 2 is needed)",
    "memlock_ok": "locked memory is limited (memlock unlimited in /etc/security/limits.d)",
}
_NOT_CHATS: Final = frozenset({"embeddings", "embedding", "transcription-only"})
_NOT_CHAT_TAGS: Final = ("whisper", "embed")
_MAX_GIGABYTES: Final = 1000
_MAX_CONTEXT: Final = 1 << 24
_MAX_PARAMS: Final = 10**13


class FlmModel(msgspec.Struct, frozen=True):
    """One installed model as FastFlowLM describes it; fields are 0 or empty if not described.

    `footprint_bytes` is the memory that its list gives for the model, without the cache. `chats`: it supports chat.
    """

    tag: str
    family: str = ""
    parameters: str = ""
    quantization: str = ""
    context: int = 0
    num_params: int = 0
    footprint_bytes: int = 0
    chats: bool = True


class FlmReport(msgspec.Struct, frozen=True):
    """Result of the detection; `problem` is why nothing runs, including the program's own message about the NPU."""

    program: str | None
    version: str = ""
    models: tuple[FlmModel, ...] = ()
    problem: str = ""


def executable() -> str | None:
    """Path of the program: TESSERA_FLM if set, else `flm` on the search path."""
    path = os.environ.get("TESSERA_FLM")
    if path:
        return path if Path(path).is_file() else None
    return installed_program("flm")


def installed_models(*, fresh: bool = False) -> tuple[FlmModel, ...]:
    """Installed models that support chat. The program is run once, and again with `fresh`. Blocks."""
    program = executable()
    if program is None:
        return ()
    if fresh:
        _installed.cache_clear()
    return tuple(model for model in _installed(program, Path(program).stat().st_mtime_ns) if model.chats)


def detect() -> FlmReport:
    """Run the program and report on it. Never raises for what the program does."""
    program = executable()
    if program is None:
        return FlmReport(None, problem="FastFlowLM is not installed: there is no `flm`")
    version = _run_program(program, "version")
    if version is None:
        return FlmReport(program, problem=f"{program} gives no answer")
    validated = _json(_run_program(program, "validate", "--json"))
    listed = _json(_run_program(program, "list", "--filter", "installed", "--json"))
    return FlmReport(
        program,
        version.strip().splitlines()[-1][:80] if version.strip() else "",
        _models(listed),
        _not_ready(validated),
    )


@lru_cache(maxsize=4)
def _installed(program: str, _mtime_ns: int) -> tuple[FlmModel, ...]:
    return _models(_json(_run_program(program, "list", "--filter", "installed", "--json")))


def installed_model(tag: str) -> FlmModel:
    """FastFlowLM's facts about a model. Its list is read once per program, and again if it lacks a model."""
    program = executable()
    if program is None:
        return FlmModel(tag)
    at = Path(program).stat().st_mtime_ns
    models = {model.tag: model for model in _installed(program, at)}
    if tag not in models:
        _installed.cache_clear()
        models = {model.tag: model for model in _installed(program, at)}
    return models.get(tag, FlmModel(tag))


def findings(machine: Machine) -> tuple[Finding, ...]:
    """Findings of `tessera doctor`; empty without an NPU that FastFlowLM can use."""
    npu = next((d for d in machine.devices if d.kind == "npu" and d.arch == "XDNA2"), None)
    if npu is None:
        return ()
    report = detect()
    if report.problem:
        fix = (
            "Fix that, then run `flm validate` again."
            if report.program
            else "Install it from https://fastflowlm.com/docs/install, then run `flm validate`."
        )
        title = f"FastFlowLM, which runs language models on {npu.name}, is not usable"
        return (Finding("flm", "advice", title, report.problem, fix, npu.id),)
    detail = f"{report.version}; {_listed(report.models)}; not tried on hardware by this project."
    return (Finding("flm", "advice", f"FastFlowLM can run models on {npu.name}", detail, "", npu.id),)


def _listed(models: tuple[FlmModel, ...]) -> str:
    if not models:
        return "no model installed (`flm pull llama3.2:1b` brings a small one)"
    names = ", ".join(model.tag for model in models[:_NAMED])
    more = f" and {len(models) - _NAMED} more" if len(models) > _NAMED else ""
    return (
        f"{names}{more} installed" if models else "no model installed (`flm pull llama3.2:1b` brings a small one)"
    )


def _run_program(program: str, *arguments: str) -> str | None:
    try:
        done = subprocess.run(
            [program, *arguments],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=TIMEOUT_S,
            check=False,
            env=without_secrets({"FLM_DISABLE_UPDATE_CHECK": "1"}),
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout[:_MAX_OUTPUT].decode("utf-8", "replace")


def _json(text: str | None) -> Any:
    try:
        return json.loads(text or "")
    except (ValueError, RecursionError):
        return None


def _models(listed: Any) -> tuple[FlmModel, ...]:
    """Installed models. The format has changed between versions, so several are accepted."""
    models = listed.get("models", ()) if isinstance(listed, dict) else listed
    by_name: dict[str, FlmModel] = {}
    for model in models if isinstance(models, list) else ():
        entry = model if isinstance(model, dict) else {"name": model}
        name = entry.get("name") or entry.get("model")
        is_missing = entry.get("installed") is False
        if isinstance(name, str) and 0 < len(name) <= _MAX_TAG and name.isprintable() and not is_missing:
            by_name.setdefault(name, _model(name, entry))
    return tuple(by_name.values())


def _model(tag: str, entry: dict[str, Any]) -> FlmModel:
    details = entry.get("details")
    details = details if isinstance(details, dict) else {}
    labels = entry.get("label")
    kinds = {label for label in labels if isinstance(label, str)} if isinstance(labels, list) else set()
    footprint = entry.get("footprint")
    giga = footprint if isinstance(footprint, int | float) and 0 < footprint < _MAX_GIGABYTES else 0
    return FlmModel(
        tag,
        family=_word(details.get("family")),
        parameters=_word(details.get("parameter_size")),
        quantization=_word(details.get("quantization_level")),
        context=_count(entry.get("default_context_length"), _MAX_CONTEXT),
        num_params=_count(entry.get("size"), _MAX_PARAMS),
        footprint_bytes=int(giga * 1e9),
        chats=not (kinds & _NOT_CHATS or tag.startswith(_NOT_CHAT_TAGS)),
    )


def _word(value: Any) -> str:
    return value[:40] if isinstance(value, str) and value.isprintable() else ""


def _count(value: Any, most: int) -> int:
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 < value <= most else 0


def _not_ready(reason: Any) -> str:
    """Requirements that `flm validate` reports as missing, with their fixes; empty if ready or not reported."""
    if not isinstance(reason, dict) or reason.get("ready") is not False:
        return ""
    missing = [words for key, words in _CHECKS.items() if reason.get(key) is False]
    return "`flm validate` says that the NPU is not ready" + (": " + "; ".join(missing) if missing else "")
