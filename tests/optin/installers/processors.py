"""Opt-in: runs the program of a .deb on other, emulated CPUs: the right variant of the kernels, the right answer.

    sudo python tests/optin/installers/processors.py FILE.deb [--work FOLDER] [--cpu NAME ...]

Needs qemu-user and binfmt_misc: the program's file gets a separate ending that Linux runs in qemu, so the
processes that it starts are emulated too. An instruction that the CPU lacks ends a process with SIGILL, as on real
hardware. Takes minutes per CPU.
"""

import argparse
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

BINFMT = Path("/proc/sys/fs/binfmt_misc")
ENDING = "emulated"
QUESTION, ANSWER = "What is a token?", "piece of a word"
# The expected variant of ggml's CPU backend for each CPU. qemu does not emulate AVX-512.
VARIANTS = {"Nehalem": "sse42", "SandyBridge": "sandybridge", "Haswell": "haswell"}
LIMIT_S = 3600


@contextmanager
def emulated_by(qemu: str) -> Iterator[None]:
    """Files of our ending run in qemu."""
    if not (BINFMT / "register").exists():
        subprocess.run(["mount", "-t", "binfmt_misc", "binfmt_misc", str(BINFMT)], check=True)
    entry = BINFMT / f"tessera-{ENDING}"
    if entry.exists():
        entry.write_text("-1")
    (BINFMT / "register").write_text(f":{entry.name}:E::{ENDING}::{qemu}:")
    try:
        yield
    finally:
        entry.write_text("-1")


def program(package: Path, work: Path) -> Path:
    """The package's program below `work`, its file renamed."""
    shutil.rmtree(work, ignore_errors=True)
    work.mkdir(parents=True)
    subprocess.run(["dpkg-deb", "-x", str(package), str(work)], check=True)
    plain = work / "usr/lib/tessera/tessera"
    return plain.rename(plain.with_suffix(f".{ENDING}"))


def run(command: Path, cpu: str, home: Path, *words: str) -> str:
    """Output of one of its commands on that CPU. Raises: AssertionError: its exit code was not 0."""
    env = {**os.environ, "QEMU_CPU": cpu, "TESSERA_HOME": str(home)}
    done = subprocess.run(
        [str(command), *words], env=env, capture_output=True, text=True, timeout=LIMIT_S, check=False
    )
    assert done.returncode == 0, f"{words} on {cpu} ended with {done.returncode}: {done.stdout}{done.stderr}"
    return done.stdout + done.stderr


def main() -> int:
    """Every CPU, one line each."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file", type=Path)
    parser.add_argument("--work", type=Path, default=Path("build/processors"))
    parser.add_argument("--cpu", action="append", choices=sorted(VARIANTS))
    options = parser.parse_args()
    qemu = shutil.which("qemu-x86_64")
    if qemu is None:
        parser.error("qemu-x86_64 was not found (Debian: qemu-user)")
    command = program(options.file, options.work.resolve() / "root")
    failed = False
    with emulated_by(qemu):
        for cpu in options.cpu or VARIANTS:
            started = time.monotonic()
            home = options.work.resolve() / f"home-{cpu}"
            shutil.rmtree(home, ignore_errors=True)
            try:
                told = run(command, cpu, home, "doctor")
                kernels = next(line for line in told.splitlines() if line.startswith("Kernels:"))
                assert f"cpu-{VARIANTS[cpu]}." in kernels, kernels
                answer = run(command, cpu, home, "chat", "spark", "--prompt", QUESTION)
                assert ANSWER in answer, answer
                seen = f"{kernels.strip()}; {answer.strip().splitlines()[0]}"
            except (AssertionError, StopIteration, subprocess.TimeoutExpired) as error:
                seen, failed = f"FAILED: {error}", True
            print(f"{cpu}: {seen} ({time.monotonic() - started:.0f} s)", flush=True)
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
