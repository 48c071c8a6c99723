"""How a runner process is started."""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from devices.child_command import child_command
from devices.environment import without_secrets

# Asks Linux for 2 MiB pages where the C library gives out much at once (glibc 2.35 on; others ignore it): weights
# are read from end to end for every token, and tables of small pages with them. Measured: docs/log.md, engine.
HUGE_PAGES: Final = "glibc.malloc.hugetlb=1"


def runner_command(engine: str) -> tuple[str, ...]:
    """How to start a runner. Ryzen AI brings a Python of its own, which TESSERA_ONNX_PYTHON names."""
    command = child_command("engine.runner.main", engine, str(os.getpid()))
    python = os.environ.get("TESSERA_ONNX_PYTHON")
    return (python, *command[1:]) if engine == "onnx" and python else command


def runner_environment(extra: Mapping[str, str] | None = None) -> dict[str, str]:
    """The child's environment: what processes need, no secrets.

    A model file can be hostile and is parsed in this process, so tokens and keys stay out of its reach.
    """
    env = without_secrets()
    root = str(Path(__file__).resolve().parents[2])
    env["PYTHONPATH"] = os.pathsep.join(filter(None, (root, env.get("PYTHONPATH"))))
    env["PYTHONUNBUFFERED"] = "1"
    env["GLIBC_TUNABLES"] = ":".join(filter(None, (HUGE_PAGES, env.get("GLIBC_TUNABLES"))))  # the last word counts
    if extra:
        env.update(extra)
    return env
