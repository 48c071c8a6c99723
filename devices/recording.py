"""Machines as files: record what the probes read here, redacted, and replay it on any machine."""

import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from devices.errors import BadRecording
from devices.host import CommandResult, Host, Json
from devices.types import System

FORMAT = "tessera-machine/1"
MAX_RECORDING_BYTES = 16 << 20
MAX_DEPTH = 64
SECTIONS = ("files", "links", "access", "commands", "registry", "sysctl", "env", "api")

# Kernel parameters that matter here; all others (root=UUID=..., hostnames) are not recorded.
KERNEL_PARAMETERS = re.compile(
    r"^(amd_iommu|intel_iommu|iommu[.=]|amdgpu|ttm|amdttm|i915|xe|nvidia|nouveau|nomodeset|mem=|hugepages"
    r"|modprobe\.blacklist|module_blacklist|rd\.driver\.blacklist)"
)
PRIVATE_LINE = re.compile(r"serial|uuid|asset_tag|part_number|hostname|machine-id", re.IGNORECASE)
HOME = re.compile(r"(/home/|/Users/|[A-Za-z]:\\Users\\)[^/\\\s:]+")


class RecordedHost:
    """Replays a recording: `files` (path: text), `links`, `access`, `commands`, `registry`, `api`...

    Folders follow from the paths below them. Values of a wrong type count as absent, as on a broken machine.
    """

    def __init__(self, recording: Mapping[str, Any]) -> None:
        self._system: System = recording["system"] if recording.get("system") in _SYSTEMS else "unknown"
        self._parts: dict[str, Mapping[str, Any]] = {}
        for section in SECTIONS:
            part = recording.get(section)
            self._parts[section] = part if isinstance(part, Mapping) else {}
        self.backends: Json = recording.get("backends")
        self._folders: dict[str, set[str]] = {}
        for section in ("files", "links", "access"):
            for path in self._parts[section]:
                self._add_path(str(path))

    def _add_path(self, path: str) -> None:
        if path.count("/") > MAX_DEPTH:
            return
        while "/" in path:
            folder, _, name = path.rpartition("/")
            names = self._folders.setdefault(folder or "/", set())
            if name in names:
                return
            if name:
                names.add(name)
            path = folder

    @property
    def system(self) -> System:
        return self._system

    def read(self, path: str) -> bytes | None:
        content = self._parts["files"].get(path)
        if isinstance(content, bytes):
            return content
        return content.encode("utf-8", "surrogateescape") if isinstance(content, str) else None

    def listdir(self, path: str) -> tuple[str, ...]:
        """Names below a recorded folder."""
        return tuple(sorted(self._folders.get(path.rstrip("/") or "/", ())))

    def readlink(self, path: str) -> str | None:
        target = self._parts["links"].get(path)
        return target if isinstance(target, str) else None

    def access(self, path: str) -> str:
        """Recorded access; a path that is only known as a folder or file is `ok`."""
        recorded = self._parts["access"].get(path)
        if isinstance(recorded, str) and recorded in {"absent", "denied", "ok"}:
            return recorded
        return "ok" if path in self._folders or path in self._parts["files"] else "absent"

    def run(self, argv: Sequence[str], timeout_s: float) -> CommandResult:
        """A recorded command, found by its words joined with spaces."""
        del timeout_s
        done = self._parts["commands"].get(" ".join(argv))
        if not isinstance(done, Mapping):
            return CommandResult(None)
        code, output = done.get("returncode"), done.get("stdout")
        return CommandResult(code if isinstance(code, int) else None, output if isinstance(output, str) else "")

    def registry(self, key: str) -> Mapping[str, Json]:
        values = self._parts["registry"].get(key)
        return values if isinstance(values, Mapping) else {}

    def registry_keys(self, key: str) -> tuple[str, ...]:
        prefix = key + "\\"
        below = (k[len(prefix) :] for k in self._parts["registry"] if str(k).startswith(prefix))
        return tuple(sorted({name.partition("\\")[0] for name in below}))

    def sysctl(self, name: str) -> int | str | None:
        value = self._parts["sysctl"].get(name)
        return value if isinstance(value, int | str) and not isinstance(value, bool) else None

    def env(self, name: str) -> str | None:
        """A recorded environment variable."""
        value = self._parts["env"].get(name)
        return value if isinstance(value, str) else None

    def api(self, name: str) -> Json:
        value: Json = self._parts["api"].get(name)
        return value


_SYSTEMS = {"linux", "windows", "macos"}


class RecordingHost:
    """Passes every query to `inner` and stores query and result for `recording()`."""

    def __init__(self, inner: Host) -> None:
        self._inner = inner
        self._parts: dict[str, dict[str, Any]] = {section: {} for section in SECTIONS}

    @property
    def system(self) -> System:
        return self._inner.system

    def read(self, path: str) -> bytes | None:
        content = self._inner.read(path)
        if content is not None:
            self._parts["files"][path] = content.decode("utf-8", "replace")
        return content

    def listdir(self, path: str) -> tuple[str, ...]:
        """List a folder and record the names, unless the file below that name was read already."""
        names = self._inner.listdir(path)
        for name in names:
            full = f"{path.rstrip('/')}/{name}"
            if full not in self._parts["files"]:
                self._parts["access"].setdefault(full, "ok")
        return names

    def readlink(self, path: str) -> str | None:
        target = self._inner.readlink(path)
        if target is not None:
            self._parts["links"][path] = target
        return target

    def access(self, path: str) -> str:
        answer = self._inner.access(path)
        self._parts["access"][path] = answer
        return answer

    def run(self, argv: Sequence[str], timeout_s: float) -> CommandResult:
        done = self._inner.run(argv, timeout_s)
        self._parts["commands"][" ".join(argv)] = {"returncode": done.returncode, "stdout": done.stdout}
        return done

    def registry(self, key: str) -> Mapping[str, Json]:
        values = self._inner.registry(key)
        self._parts["registry"][key] = dict(values)
        return values

    def registry_keys(self, key: str) -> tuple[str, ...]:
        """List subkeys and record them."""
        names = self._inner.registry_keys(key)
        for name in names:
            self._parts["registry"].setdefault(f"{key}\\{name}", {})
        return names

    def sysctl(self, name: str) -> int | str | None:
        value = self._inner.sysctl(name)
        if value is not None:
            self._parts["sysctl"][name] = value
        return value

    def env(self, name: str) -> str | None:
        """Read a variable and record it."""
        value = self._inner.env(name)
        if value is not None:
            self._parts["env"][name] = value
        return value

    def api(self, name: str) -> Json:
        """Query a fact and record it."""
        value = self._inner.api(name)
        if value is not None:
            self._parts["api"][name] = value
        return value

    def recording(self, backends: Json = None) -> dict[str, Any]:
        """Everything queried so far, without serial numbers, user names and irrelevant kernel parameters."""
        parts = {name: {k: redact(k, v) for k, v in part.items()} for name, part in self._parts.items()}
        document: dict[str, Any] = {"format": FORMAT, "system": self.system, **parts}
        if backends is not None:
            document["backends"] = redact("backends", backends)
        return document


def redact(name: str, value: Any) -> Any:
    """`value` without data that identifies a person or a single machine."""
    if isinstance(value, str):
        if name == "/proc/cmdline":
            return " ".join(word for word in value.split() if KERNEL_PARAMETERS.match(word))
        public = [line for line in value.splitlines(keepends=True) if not PRIVATE_LINE.search(line)]
        return HOME.sub(r"\1user", "".join(public) if len(public) < len(value.splitlines()) else value)
    if isinstance(value, Mapping):
        return {k: redact(str(k), v) for k, v in value.items() if not PRIVATE_LINE.search(str(k))}
    if isinstance(value, list | tuple):
        return [redact(name, item) for item in value]
    return value


def load_recording(path: Path) -> RecordedHost:
    """A recorded machine from a file.

    Raises: BadRecording: the file is missing, too large, not a JSON object, or of another format.
    """
    try:
        if path.stat().st_size > MAX_RECORDING_BYTES:
            raise BadRecording(str(path), f"it is larger than {MAX_RECORDING_BYTES} bytes")
        document = json.loads(path.read_bytes())
    except OSError as error:
        raise BadRecording(str(path), error.strerror or "it cannot be read") from error
    except (ValueError, RecursionError) as error:
        raise BadRecording(str(path), "it is not JSON") from error
    if not isinstance(document, dict) or document.get("format") != FORMAT:
        raise BadRecording(str(path), f'"format" is not {FORMAT!r}')
    return RecordedHost(document)


def save_recording(path: Path, document: Mapping[str, Any]) -> None:
    """Write a recording as readable JSON."""
    path.write_text(json.dumps(document, indent=1, sort_keys=True, ensure_ascii=True) + "\n", encoding="utf-8")
