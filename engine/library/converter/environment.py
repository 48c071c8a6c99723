"""The environment of llama.cpp's converter: built on demand from locked packages, and removable.

<converter>/<key>/            a virtual environment
<converter>/<key>/llama.cpp   the converter, from the locked source archive of llama-cpp-python
<converter>/<key>/fetched     downloads so far; removed when the environment is complete
<converter>/<key>/ready.json  written last

`assets/converter` holds the hashes of all packages. The CPU build of torch comes from a separate index; its URL is
taken from llama.cpp's requirements file.
"""

import contextlib
import hashlib
import os
import platform
import re
import shutil
import subprocess
import sys
import tarfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import msgspec

from devices.child_command import interpreter
from devices.msgspec_lock import learned
from devices.programs import installed_program
from engine.core.errors import EnvironmentFault
from engine.jobs.jobs import JobContext
from engine.message_catalog.reasons import Reason, because
from quantize.convert.llama_cpp import ASSETS

VERSION: Final = "0.3.36"
# Measured: 2026-11-23 on Linux x86-64, the log, "llama.cpp's own converter": download size, disk size, and time
# on two busy cores with a fast connection.
DOWNLOAD_BYTES: Final = 320_000_000
DISK_BYTES: Final = 1_000_000_000
SECONDS: Final = 360.0
_NEEDED_DISK_BYTES: Final = DISK_BYTES + DOWNLOAD_BYTES
_READY: Final = "ready.json"
# torch is one requirement per system; three or more requirements are reported as "packages".
_MANY: Final = 3
_POLL_S: Final = 0.2
_TORCH: Final = "torch=="
_BUILDS_ARCHIVES: Final = ("packaging==", "pathspec==", "scikit-build-core==")
_REQUIREMENTS: Final = "requirements/requirements-convert_hf_to_gguf.txt"
_VOCABULARIES: Final = ("models/ggml-vocab-gpt-neox.gguf", "models/ggml-vocab-llama-spm.gguf")
_WANTED: Final = ("convert_hf_to_gguf.py", "conversion/", "gguf-py/gguf/", "LICENSE", _REQUIREMENTS, *_VOCABULARIES)
_MAX_MEMBER_BYTES: Final = 8 << 20
# Python versions that have locked wheels.
_PYTHONS: Final = {("linux", "aarch64"): ((3, 12),)}
_USUAL_PYTHONS: Final = ((3, 11), (3, 12), (3, 13))
_PIP: Final = ("-m", "pip", "--disable-pip-version-check", "--no-input")


class NoConverter(EnvironmentFault):
    """llama.cpp's converter could not be installed or run; the message states the reason."""

    code = "converter_failed"


class Converter(msgspec.Struct, frozen=True, kw_only=True):
    """An installed converter: its interpreter, llama.cpp's files, and its size on disk."""

    folder: Path
    num_bytes: int

    @property
    def python(self) -> Path:
        """Path of the environment's interpreter."""
        return _python_in(self.folder)

    @property
    def source(self) -> Path:
        """Folder of llama.cpp's files."""
        return self.folder / "llama.cpp"


class _Ready(msgspec.Struct, frozen=True):
    num_bytes: int


def installed(folder: Path) -> Converter | None:
    """The converter for the current locks, or None if it is not installed."""
    environment = folder / _key()
    try:
        ready = msgspec.json.decode((environment / _READY).read_bytes(), type=learned(_Ready))
    except (OSError, ValueError):
        return None
    return Converter(folder=environment, num_bytes=ready.num_bytes)


def size_on_disk(folder: Path) -> int:
    """Bytes of all files below the folder, including unfinished and old environments."""
    total = 0
    for parent, _, names in os.walk(folder):
        for name in names:
            with contextlib.suppress(OSError):  # pip moved the file
                total += (Path(parent) / name).lstat().st_size
    return total


def remove(folder: Path) -> int:
    """Remove the converter and return the freed bytes. Raises: NoConverter: the system refuses."""
    freed = size_on_disk(folder)
    try:
        shutil.rmtree(folder)
    except FileNotFoundError:
        return 0
    except OSError as error:
        raise NoConverter(because("converter_stays", path=str(folder), why=error.strerror or str(error))) from error
    return freed


def install(folder: Path, control: JobContext) -> Converter:
    """Install the converter. Downloads of an earlier attempt are reused; the result counts only when complete.

    Raises: NoConverter: no suitable Python, not enough disk space, no index, or a package differs from its lock.
    Cancelled, Paused from `control`.
    """
    there = installed(folder)
    if there is not None:
        return there
    environment = folder / _key()
    try:
        _remove_others(folder, environment)
        environment.mkdir(parents=True, exist_ok=True)
        free = shutil.disk_usage(environment).free
        if free < _NEEDED_DISK_BYTES:
            sizes = {"needed_mib": _NEEDED_DISK_BYTES >> 20, "free_mib": free >> 20}
            raise NoConverter(because("converter_disk", path=str(folder), **sizes))
        _Making(environment, control).run()
        num_bytes = size_on_disk(environment)
        part = environment / f"{_READY}.part"
        part.write_bytes(msgspec.json.encode(_Ready(num_bytes)))
        part.replace(environment / _READY)
    except OSError as error:
        raise NoConverter(because("bad_file", path=str(environment), why=error.strerror or str(error))) from error
    return Converter(folder=environment, num_bytes=num_bytes)


def requirements(lock: str) -> tuple[str, ...]:
    """The requirements of a lock file, each with its hashes."""
    return tuple(block for block in re.split(r"(?m)^(?=[A-Za-z])", lock) if block.strip())


def archive_index(requirements_file: str) -> tuple[str, ...]:
    """Pip's options for the index from which llama.cpp installs the CPU build of torch."""
    match = re.search(r"(?m)^--extra-index-url\s+(https://\S+)\s*$", requirements_file)
    return ("--extra-index-url", match[1]) if match else ()


def _key() -> str:
    digest = hashlib.sha256()
    for name in ("packages.txt", "source.txt", "run.py"):
        digest.update((ASSETS / name).read_bytes())
    return f"{VERSION}-{digest.hexdigest()[:12]}"


def _python_in(environment: Path) -> Path:
    return environment / ("Scripts/python.exe" if os.name == "nt" else "bin/python")


def _remove_others(folder: Path, environment: Path) -> None:
    for other in folder.iterdir() if folder.is_dir() else ():
        if other != environment:
            shutil.rmtree(other)


def _fitting_python() -> str:
    """A Python that has locked wheels. Raises: NoConverter: none is installed."""
    fitting = _PYTHONS.get((sys.platform, platform.machine()), _USUAL_PYTHONS)
    programs = [installed_program(f"python{major}.{minor}") for major, minor in reversed(fitting)]
    with contextlib.suppress(FileNotFoundError):
        programs.insert(0, interpreter()[0])
    for python in filter(None, programs):
        command = [python, "-I", "-c", "import sys; print(*sys.version_info[:2])"]
        with contextlib.suppress(OSError, subprocess.TimeoutExpired, ValueError):
            printed = subprocess.run(command, capture_output=True, text=True, timeout=20, check=False).stdout
            if tuple(map(int, printed.split())) in fitting:
                return python
    versions = tuple(f"{major}.{minor}" for major, minor in fitting)
    raise NoConverter(because("converter_python", versions=versions))


class _Making:
    """One installation run; steps that an earlier run finished are skipped."""

    def __init__(self, environment: Path, control: JobContext) -> None:
        self._environment = environment
        self._control = control
        self._fetched = environment / "fetched"
        self._temporary = environment / "temporary"

    def run(self) -> None:
        """Run all steps. Raises: NoConverter, OSError; Cancelled, Paused."""
        shutil.rmtree(self._temporary, ignore_errors=True)
        for folder in (self._fetched, self._temporary):
            folder.mkdir(exist_ok=True)
        if not _python_in(self._environment).exists():
            self._call([_fitting_python(), "-m", "venv", str(self._environment)], because("environment_not_made"))
        packages = requirements((ASSETS / "packages.txt").read_text(encoding="ascii"))
        first = [one for one in packages if one.startswith(_BUILDS_ARCHIVES)]
        torch = [one for one in packages if one.startswith(_TORCH)]
        others = [one for one in packages if one not in first and one not in torch]
        self._fetch(first)
        self._install(first)
        index = archive_index(self._archive())
        self._fetch(others)
        self._fetch(torch, index)
        self._install([*others, *torch])
        trial = [
            str(_python_in(self._environment)),
            "-I",
            str(ASSETS / "run.py"),
            str(self._environment / "llama.cpp"),
        ]
        self._call(trial, because("converter_starts_not"))
        shutil.rmtree(self._fetched)
        shutil.rmtree(self._temporary, ignore_errors=True)

    def _fetch(self, packages: Sequence[str], index: Sequence[str] = ()) -> None:
        """Download packages, unless an earlier run downloaded all of them."""
        mark = self._fetched / hashlib.sha256("".join(packages).encode()).hexdigest()[:16]
        if not mark.exists():
            words = [*index, "--no-deps", "--only-binary", ":all:", "--no-cache-dir", "--require-hashes"]
            what = packages[0].split("==")[0] if len(packages) < _MANY else because("packages")
            self._pip(["download", *words, "-r", self._lock(packages), "-d", str(self._fetched)], what)
            mark.touch()

    def _install(self, packages: Sequence[str]) -> None:
        words = ["--no-index", "--find-links", str(self._fetched), "--no-deps", "--require-hashes"]
        self._pip(["install", "--no-compile", *words, "-r", self._lock(packages)], because("packages"))

    def _archive(self) -> str:
        """Extract the converter from the locked source archive; return its requirements file."""
        target = self._environment / "llama.cpp"
        if not target.is_dir():
            lock = ASSETS / "source.txt"
            words = ["--no-deps", "--no-binary", ":all:", "--no-build-isolation", "--no-cache-dir"]
            order = ["download", *words, "--require-hashes", "-r", str(lock), "-d", str(self._fetched)]
            self._pip(order, because("source_archive"))
            archive = next(self._fetched.glob("llama_cpp_python-*.tar.gz"))
            unpack(archive, self._temporary / "llama.cpp")
            (self._temporary / "llama.cpp").rename(target)
        return (target / _REQUIREMENTS).read_text(encoding="utf-8")

    def _lock(self, packages: Sequence[str]) -> str:
        path = self._temporary / "lock.txt"
        path.write_text("".join(packages), encoding="ascii")
        return str(path)

    def _pip(self, words: Sequence[str], what: str | Reason) -> None:
        command = [str(_python_in(self._environment)), *_PIP, *words, "-q", "--progress-bar", "off"]
        self._call(command, because("not_fetched", what=what), note=what)

    def _call(self, command: Sequence[str], failed: Reason, note: str | Reason = "") -> None:
        """Run a command to its end and report the downloaded bytes. Raises: NoConverter; Cancelled, Paused."""
        log_path = self._temporary / "said.txt"
        unwanted = ("PYTHONPATH", "PYTHONHOME", "PIP_TARGET", "PIP_USER", "PIP_REQUIRE_VIRTUALENV")
        variables = {name: value for name, value in os.environ.items() if name not in unwanted}
        variables |= dict.fromkeys(("TMPDIR", "TEMP", "TMP"), str(self._temporary))
        with (
            log_path.open("w+", encoding="utf-8", errors="replace") as log,
            subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT, env=variables
            ) as process,
        ):
            try:
                while process.poll() is None:
                    self._control.check()
                    self._report(note)
                    time.sleep(_POLL_S)
            except BaseException:
                process.kill()
                raise
            log.seek(0)
            lines = [line.strip() for line in log if line.strip() and not line.startswith("WARNING")]
        if process.returncode != 0:
            last = next((line for line in reversed(lines) if line.startswith("ERROR")), "".join(lines[-1:]))
            why = last[:300] or because("exit_code", code=process.returncode)
            raise NoConverter(because("converter_step", failed=failed, why=why))

    def _report(self, note: str | Reason) -> None:
        done = size_on_disk(self._fetched) + size_on_disk(self._temporary)
        self._control.report("fetching", min(done, DOWNLOAD_BYTES), DOWNLOAD_BYTES, note=note)


def unpack(archive: Path, target: Path) -> None:
    """Extract the converter from a source archive of llama-cpp-python. Raises: NoConverter: it is not in there."""
    try:
        with tarfile.open(archive) as opened:
            for member in opened:
                _, separator, path = member.name.partition("/vendor/llama.cpp/")
                if separator and member.isfile() and member.size <= _MAX_MEMBER_BYTES and path.startswith(_WANTED):
                    member.name = path
                    opened.extract(member, target, filter="data")
    except (tarfile.TarError, EOFError) as error:
        raise NoConverter(because("archive_not_unpacked", name=archive.name, why=str(error))) from error
    if not (target / "convert_hf_to_gguf.py").is_file() or not (target / _REQUIREMENTS).is_file():
        raise NoConverter(because("archive_without_converter", name=archive.name))
