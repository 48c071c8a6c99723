"""Checks the origin of the code and its dependencies: `python -m tests.optin.supply_chain`.

Needs pip's index and `build`.

1. The bill of materials (installers/sbom.py) has no problem; it fits its schema, if cyclonedx-python-lib is there.
2. Known advisories for every locked version, by `pip-audit` if it is installed (`AUDIT=path/to/pip-audit`). Its
   output is stored next to this file's output, so that two runs can be compared. Without it, or without a network,
   `ADVISORIES=folder` searches a checkout of PyPA's advisory-database (installers/advisories.py).
3. Two builds of the wheel, from two copies of the tree at different times, are the same byte for byte.
"""

import hashlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
SCRATCH = Path(tempfile.mkdtemp(prefix="supply-"))


def bill():
    target = SCRATCH / "bom.json"
    done = subprocess.run([sys.executable, "installers/sbom.py", str(target)], cwd=ROOT, check=False)
    print("bill of materials:", "no problem" if done.returncode == 0 else "PROBLEMS")
    try:
        from cyclonedx.schema import SchemaVersion
        from cyclonedx.validation.json import JsonStrictValidator
    except ImportError:
        print("its schema was not checked: cyclonedx-python-lib is not installed")
        return done.returncode
    found = JsonStrictValidator(SchemaVersion.V1_6).validate_str(target.read_text())
    print("its schema:", found or "fits")
    return done.returncode or int(found is not None)


def advisories():
    if folder := os.environ.get("ADVISORIES"):
        command = [sys.executable, "installers/advisories.py", folder]
        return subprocess.run(command, cwd=ROOT, check=False).returncode
    audit = os.environ.get("AUDIT") or shutil.which("pip-audit")
    if not audit:
        print("advisories were not looked up: pip-audit is not installed")
        return 0
    bad = 0
    for lock in ("desktop", "build", "bundle"):
        path = ROOT / "installers" / "lock" / f"{lock}.txt"
        answer = SCRATCH / f"{lock}.json"
        done = subprocess.run(
            [audit, "--disable-pip", "--require-hashes", "-r", str(path), "-f", "json", "-o", str(answer)],
            capture_output=True, text=True, check=False,
        )  # fmt: skip
        if not answer.exists():
            print(f"{lock}: not looked up: {done.stderr.strip().splitlines()[-1:]}")
            continue
        asked = json.loads(answer.read_text())["dependencies"]
        skipped = [d["name"] for d in asked if "skip_reason" in d]  # the index has no advisories
        if skipped:
            print(f"{lock}: {len(skipped)} of {len(asked)} could not be looked up")
        found = [d for d in asked if d.get("vulns")]
        bad += len(found) + len(skipped)
        print(
            f"{lock}:",
            "; ".join(f"{d['name']} {d['version']}: {[v['id'] for v in d['vulns']]}" for d in found) or "none",
        )
    return int(bad > 0)


def wheel(name):
    copy, out = SCRATCH / name, SCRATCH / f"{name}-out"
    archive = subprocess.run(["git", "archive", "HEAD"], cwd=ROOT, capture_output=True, check=True).stdout
    copy.mkdir()
    subprocess.run(["tar", "-x", "-m", "-C", str(copy)], input=archive, check=True)
    command = [
        sys.executable,
        "-m",
        "pip",
        "wheel",
        "-q",
        "--no-deps",
        "--no-build-isolation",
        "-w",
        str(out),
        str(copy),
    ]
    subprocess.run(command, check=True, env={**os.environ, "SOURCE_DATE_EPOCH": "315532800"})
    (built,) = out.glob("*.whl")
    return hashlib.sha256(built.read_bytes()).hexdigest(), built.name


def reproducible():
    first, second = wheel("first"), wheel("second")
    print(
        f"wheel {first[1]}: {first[0][:16]} and {second[0][:16]}:", "the same" if first == second else "DIFFERENT"
    )
    return int(first != second)


if __name__ == "__main__":
    failed = [step.__name__ for step in (bill, advisories, reproducible) if step()]
    print("answers in", SCRATCH)
    raise SystemExit(", ".join(failed) if failed else 0)
