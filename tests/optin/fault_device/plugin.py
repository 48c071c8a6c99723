"""The fault device's library, built from the headers of the locked llama.cpp against the installed libraries."""

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
sys.path.insert(0, str(ROOT))

from devices.backends.libraries import library_folder
from installers.packs.toolchain import source_tree

SOURCE = Path(__file__).with_name("fault_device.cpp")


def build(work: Path) -> Path:
    """Compile the plugin below `work`; returns its path."""
    work.mkdir(parents=True, exist_ok=True)
    target = work / "libggml-fault.so"
    if target.exists() and target.stat().st_mtime > SOURCE.stat().st_mtime:
        return target
    tree, libraries = source_tree(work) / "ggml", library_folder()
    flags = ["-std=c++17", "-O2", "-fPIC", "-shared", "-Wall", "-Wextra", "-Werror"]
    headers = ["-isystem", str(tree / "include"), "-isystem", str(tree / "src")]
    link = [f"-L{libraries}", "-l:libggml.so.0", "-l:libggml-base.so.0"]
    subprocess.run(["g++", *flags, *headers, str(SOURCE), "-o", str(target), *link], check=True)
    return target
