"""Build the documentation as a site: `python3 installers/docs_site.py [FOLDER]`, default build/site.

Makes an environment with the locked tools on first use. mkdocs takes this file as its hook: the front page comes
from README.md and the page of remedies from the texts that `tessera doctor` prints, so that neither is kept twice.
"""

import importlib
import os
import re
import subprocess
import sys
import venv
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from devices.types import System

ROOT: Final = Path(__file__).resolve().parents[1]
REPOSITORY_ONLY: Final = re.compile(r"\]\((?!docs/|https?:|#)([^)]+)\)")
SHIM: Final = "iframe-worker-1.0.4.js"
_SYSTEMS: "Final[tuple[tuple[System, str], ...]]" = (("linux", "Linux"), ("windows", "Windows"), ("macos", "macOS"))
_BACKENDS: Final = (
    ("vulkan", "Vulkan (AMD, Intel, NVIDIA)"), ("cuda", "CUDA (NVIDIA)"), ("rocm", "ROCm (AMD)"),
    ("sycl", "SYCL (Intel)"), ("opencl", "OpenCL (Qualcomm)"), ("openvino", "OpenVINO (Intel)"), ("metal", "Metal"),
    ("cpu", "Processor"),
)  # fmt: skip


def front_page() -> str:
    """README.md, with its links as they are from within docs."""
    text = (ROOT / "README.md").read_text(encoding="utf-8").replace("](docs/", "](")
    return REPOSITORY_ONLY.sub(lambda found: found[0] if (ROOT / "docs" / found[1]).exists() else "]", text)


def remedies_page() -> str:
    """What keeps a backend from running, and the step that helps, on each system."""
    sys.path.insert(0, str(ROOT))
    from devices.install_hints import missing_backend, no_device

    lines = [
        "# When something does not run",
        "",
        "`tessera doctor` looks at this computer and says what is missing and the one step that helps.",
        "The texts below are its own. `tessera doctor --json` is for programs, and for bug reports.",
        "",
    ]
    for system, name in _SYSTEMS:
        lines += [
            f"## {name}",
            "",
            "| Backend | Its library is missing | It loads, but finds no device |",
            "|---|---|---|",
        ]
        for backend, title in _BACKENDS:
            if (backend == "metal") != (system == "macos") and backend != "cpu":
                continue
            missing = missing_backend(backend, system, "x86_64", frozen=False)
            lines.append(f"| {title} | {missing} | {no_device(backend, system) or ''} |".replace("|| ", "\\|\\| "))
        lines.append("")
    lines += (ROOT / "docs" / "troubleshooting.md.in").read_text(encoding="utf-8").splitlines()
    return "\n".join(lines) + "\n"


def on_files(files: Any, config: Any) -> Any:
    """A hook of mkdocs: the two pages that are made."""
    files_of = importlib.import_module("mkdocs.structure.files").File  # nothing but mkdocs' own environment has it
    for name, text in (("index.md", front_page()), ("troubleshooting.md", remedies_page())):
        files.append(files_of.generated(config, name, content=text))
    for name in (SHIM, "iframe-worker-LICENSE"):
        text = (ROOT / "installers" / "site" / name).read_text(encoding="utf-8")
        files.append(files_of.generated(config, f"assets/{name}", content=text))
    return files


def on_post_page(output: str, page: Any, config: Any) -> str:
    """A hook of mkdocs: what searches pages opened as files lies beside them, not elsewhere."""
    del config
    up = "../" * page.file.dest_uri.count("/")
    return re.sub(r"https://[^\"' ]*iframe-worker[^\"' ]*", f"{up}assets/{SHIM}", output)


def main() -> int:
    """Build, and fail on a dead link."""
    out = Path(sys.argv[1]) if len(sys.argv) > 1 else ROOT / "build" / "site"
    folder = ROOT / "build" / "site-tools"
    python = folder / ("Scripts/python.exe" if os.name == "nt" else "bin/python")
    if not (folder / "complete").exists():
        venv.create(folder, with_pip=True, clear=True)
        pip = [str(python), "-m", "pip", "install", "-q", "--disable-pip-version-check", "--require-hashes"]
        subprocess.run([*pip, "-r", str(ROOT / "installers" / "lock" / "site.txt")], check=True)
        (folder / "complete").touch()
    env = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    command = [str(python), "-m", "mkdocs", "build", "--strict", "--site-dir", str(out.resolve())]
    return subprocess.run(command, cwd=ROOT, env=env, check=False).returncode


if __name__ == "__main__":
    sys.exit(main())
