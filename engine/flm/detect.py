"""Is FastFlowLM installed, does it see an NPU, and which models has it? Its program is asked, in a child."""

import json
import os
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from devices.environment import without_secrets
from devices.programs import installed_program
from devices.types import Finding, Machine

# Ids of its models in the library, and what a runner gets as a path.
PREFIX: Final = "flm:"
# Messages and tools as they are: FastFlowLM applies the model's own template.
TEMPLATE: Final = '{{ {"messages": messages, "tools": tools if tools else []} | tojson }}'
TIMEOUT_S: Final = 10.0
_MAX_OUTPUT: Final = 1 << 20
_MAX_TAG: Final = 100


@dataclass(frozen=True, slots=True)
class FlmReport:
    """What was found. `ready` is its own word on the NPU (None: it did not say)."""

    program: str | None
    version: str = ""
    ready: bool | None = None
    models: tuple[str, ...] = ()
    problem: str = ""


def executable() -> str | None:
    """The program: TESSERA_FLM if set, else `flm` of the search path."""
    named = os.environ.get("TESSERA_FLM")
    if named:
        return named if Path(named).is_file() else None
    return installed_program("flm")


def tag_of(path: str) -> str:
    """FastFlowLM's own name of a model."""
    return path.removeprefix(PREFIX)


def detect(timeout_s: float = TIMEOUT_S) -> FlmReport:
    """Ask the program. Never raises for what it does."""
    program = executable()
    if program is None:
        return FlmReport(None, problem="FastFlowLM is not installed: there is no `flm`")
    version = _ask(program, timeout_s, "version")
    if version is None:
        return FlmReport(program, problem=f"{program} gives no answer")
    validated = _json(_ask(program, timeout_s, "validate", "--json"))
    ready = validated.get("ready") if isinstance(validated, dict) else None
    listed = _json(_ask(program, timeout_s, "list", "--filter", "installed", "--json"))
    return FlmReport(
        program,
        version.strip().splitlines()[-1][:80] if version.strip() else "",
        ready if isinstance(ready, bool) else None,
        _tags(listed),
        "" if ready is not False else "`flm validate` says that the NPU is not ready",
    )


def findings(machine: Machine) -> tuple[Finding, ...]:
    """What `tessera doctor` says about it: nothing without an NPU that it could use."""
    npu = next((d for d in machine.devices if d.kind == "npu" and d.arch == "XDNA2"), None)
    if npu is None:
        return ()
    report = detect()
    if report.problem:
        fix = "Install it from https://fastflowlm.com/docs/install, then run `flm validate`."
        title = f"FastFlowLM, which runs language models on {npu.name}, is not usable"
        return (Finding("flm", "advice", title, report.problem, fix, npu.id),)
    detail = f"{report.version}; {len(report.models)} models installed; not tried on hardware by this project."
    return (Finding("flm", "advice", f"FastFlowLM can run models on {npu.name}", detail, "", npu.id),)


def _ask(program: str, timeout_s: float, *arguments: str) -> str | None:
    try:
        done = subprocess.run(
            [program, *arguments],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=timeout_s,
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


def _tags(listed: Any) -> tuple[str, ...]:
    """Names of installed models; the shape has changed between versions, so several are understood."""
    models = listed.get("models", ()) if isinstance(listed, dict) else listed
    found = []
    for model in models if isinstance(models, list) else ():
        name = model if isinstance(model, str) else model.get("name") or model.get("model") if model else None
        gone = isinstance(model, dict) and model.get("installed") is False
        if isinstance(name, str) and 0 < len(name) <= _MAX_TAG and name.isprintable() and not gone:
            found.append(name)
    return tuple(dict.fromkeys(found))
