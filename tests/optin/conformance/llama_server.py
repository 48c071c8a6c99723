"""llama-server's own tests against a running Tessera, with a table of what may differ and why.

    python tests/optin/conformance/llama_server.py FOLDER HOST PORT MODEL [--python PYTHON]

FOLDER is tools/server/tests of a llama.cpp checkout; nothing is fetched. PYTHON needs pytest, requests, openai,
wget and filelock. Prints each failure that has no reason in expected.toml, counts the others, and ends with 1
where there is one. `--only basic,tokenize` runs those files.
"""

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
import tomllib
from collections import Counter
from pathlib import Path
from xml.etree import ElementTree as ET  # our own report, written by pytest

HERE = Path(__file__).parent
# They need a server of their own with other flags, a download, or what llama.cpp keeps for itself.
LEFT_OUT = (
    "router", "sleep", "mcp_servers", "tools_builtin", "kv_keep_only_active", "lora", "speculative", "vision_api",
    "slot_save", "proxy", "compat_gcp",
)  # fmt: skip


def run(folder: Path, python: str, server: str, only: list[str]) -> Path:
    """Run the tests on a copy of the folder; returns pytest's report."""
    work = Path(tempfile.mkdtemp())
    shutil.copytree(folder, work / "tests")
    for name in LEFT_OUT:
        (work / "tests" / "unit" / f"test_{name}.py").unlink(missing_ok=True)
    report = work / "report.xml"
    subprocess.run(
        [
            python,
            "-m",
            "pytest",
            "-q",
            "-p",
            "pointed",
            "-o",
            "addopts=",
            f"--junit-xml={report}",
            *(only or ["unit"]),
        ],
        cwd=work / "tests",
        env={**os.environ, "CONFORMANCE_SERVER": server, "PYTHONPATH": f"{work / 'tests'}{os.pathsep}{HERE}"},
        check=False,
        timeout=3600,
    )
    return report


def main() -> int:
    """Run, compare, print."""
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("host")
    parser.add_argument("port")
    parser.add_argument("model")
    parser.add_argument("--only", default="")
    parser.add_argument("--python", default=sys.executable)
    given = parser.parse_args()
    only = [f"unit/test_{name}.py" for name in given.only.split(",") if name]
    report = run(given.folder, given.python, f"{given.host} {given.port} {given.model}", only)
    expected = tomllib.loads((HERE / "expected.toml").read_text("utf-8"))["llama_server"]
    counts: Counter[str] = Counter()
    for case in ET.parse(report).getroot().iter("testcase"):
        name = f"{(case.get('classname') or '').removeprefix('unit.test_')}::{case.get('name')}"
        problem = next((case.find(kind) for kind in ("failure", "error") if case.find(kind) is not None), None)
        if case.find("skipped") is not None:
            counts["skipped"] += 1
        elif problem is None:
            counts["passed"] += 1
        else:
            reason = next((why for pattern, why in expected.items() if re.search(pattern, name)), "")
            counts[reason or "UNEXPECTED"] += 1
            if not reason:
                print(f"UNEXPECTED {name}: {' '.join((problem.get('message') or '').split())[:220]}")
    for reason, count in counts.most_common():
        print(f"{count:4}  {reason}")
    return 1 if counts["UNEXPECTED"] else 0


if __name__ == "__main__":
    sys.exit(main())
