"""Compiles the Windows installer from the program's folder with makensis."""

import shutil
import subprocess
from pathlib import Path

HERE = Path(__file__).parent


def nsis(program: Path, out: Path, version: str) -> Path:
    """Build `tessera-VERSION-setup.exe` below `out`. Raises: RuntimeError: makensis is missing or fails."""
    if shutil.which("makensis") is None:
        raise RuntimeError("makensis was not found; install NSIS 3 (Debian: nsis)")
    target = out.resolve() / f"tessera-{version}-setup.exe"
    defines = [f"-DVERSION={version}", f"-DPROGRAM={program.resolve()}", f"-DOUT={target}"]
    done = subprocess.run(
        ["makensis", "-V2", *defines, str(HERE / "tessera.nsi")], capture_output=True, text=True, check=False
    )
    if done.returncode != 0:
        raise RuntimeError(f"makensis refused the script:\n{done.stdout[-2000:]}{done.stderr[-500:]}")
    return target
