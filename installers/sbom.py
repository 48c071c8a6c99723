"""`python installers/sbom.py [FILE]`: what is installed, as a CycloneDX 1.6 bill of materials. Needs no network.

Components are the packages that `tessera` needs in the present environment, with licence and the hashes of the lock
file that they were installed from, and the model that comes along. Exit code 1: a licence is unknown or not kept
with ours, or a package is not in the lock.
"""

import hashlib
import json
import re
import sys
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path
from typing import Any, Final

ROOT: Final = Path(__file__).resolve().parents[1]
LOCKS: Final = ("desktop", "llama", "model")
# Licences that ask more of the whole program than Apache-2.0 grants. LGPL and MPL are kept file by file.
NOT_KEPT: Final = re.compile(r"(?<!L)GPL|AGPL|SSPL|BUSL|Commons Clause|Proprietary", re.IGNORECASE)
# What says its licence nowhere a program could read it. Source: the project's own LICENSE file.
KNOWN: Final = {
    "flatbuffers": "Apache-2.0",
    "gguf": "MIT",
    "llama-cpp-python": "MIT",
    "onnxruntime-genai": "MIT",
    "pyside6-essentials": "LGPL-3.0-only",
    "shiboken6": "LGPL-3.0-only",
}
_LINE: Final = re.compile(r"^([A-Za-z0-9._-]+)==([^ ;\\]+)")
_HASH: Final = re.compile(r"--hash=sha256:([0-9a-f]{64})")
_NAME: Final = re.compile(r"^[A-Za-z0-9._-]+")


def normal(name: str) -> str:
    """A package's name as registries compare it."""
    return re.sub(r"[-_.]+", "-", name).lower()


def locked() -> dict[str, tuple[str, list[str]]]:
    """Name: version and SHA-256 of every file that may be installed for it."""
    found: dict[str, tuple[str, list[str]]] = {}
    for lock in LOCKS:
        path = ROOT / "installers" / "lock" / f"{lock}.txt"
        name = ""
        for line in path.read_text(encoding="utf-8").splitlines() if path.exists() else ():
            if begun := _LINE.match(line):
                name = normal(begun[1])
                found.setdefault(name, (begun[2], []))
            found.get(name, ("", []))[1].extend(_HASH.findall(line))
    return found


def installed(top: str = "tessera") -> Iterator[metadata.Distribution]:
    """The packages that are needed here, each once: what `pyproject.toml` asks for, and what those ask for."""
    import tomllib

    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    wanted = [*project["dependencies"], *project.get("optional-dependencies", {}).get("gui", ())]
    seen: set[str] = {normal(top)}
    while wanted:
        requirement = wanted.pop()
        text, _, marker = requirement.partition(";")
        match = _NAME.match(text.strip())
        if match is None or "extra ==" in marker or normal(match[0]) in seen:
            continue
        seen.add(normal(match[0]))
        try:
            found = metadata.distribution(match[0])
        except metadata.PackageNotFoundError:  # for another system or interpreter
            continue
        yield found
        wanted += found.requires or ()


def field(facts: metadata.PackageMetadata, name: str) -> str:
    """A field of a package's metadata; empty where it has none."""
    return str(facts[name]) if name in facts else ""


def licence(found: metadata.Distribution) -> str:
    """Its licence in the words it uses itself; empty where it says none."""
    said = found.metadata
    named = KNOWN.get(normal(said["Name"])) or field(said, "License-Expression")
    classes = [c.rpartition(" :: ")[2] for c in said.get_all("Classifier") or () if c.startswith("License ::")]
    classes = [c for c in classes if c != "OSI Approved"]
    return str(named or " OR ".join(classes) or field(said, "License").strip().split("\n")[0][:80])


def component(found: metadata.Distribution, hashes: list[str]) -> dict[str, Any]:
    """One package as CycloneDX has it."""
    name, version = normal(found.metadata["Name"]), found.version
    purl = f"pkg:pypi/{name}@{version}"
    body: dict[str, Any] = {"type": "library", "bom-ref": purl, "name": name, "version": version, "purl": purl}
    if text := licence(found):
        body["licenses"] = [{"license": {"name": text}}]
    if hashes:
        urls = [{"type": "distribution", "url": purl, "hashes": [{"alg": "SHA-256", "content": h} for h in hashes]}]
        body["externalReferences"] = urls
    return body


def models() -> Iterator[dict[str, Any]]:
    """The models that are part of the program."""
    for path in sorted((ROOT / "assets" / "models").glob("*.gguf")):
        digest = hashlib.sha256(path.read_bytes()).hexdigest()
        ref = f"model:{path.stem}"
        yield {
            "type": "machine-learning-model", "bom-ref": ref, "name": path.stem, "version": digest[:12],
            "hashes": [{"alg": "SHA-256", "content": digest}],
        }  # fmt: skip


def bill() -> tuple[dict[str, Any], list[str]]:
    """The bill of materials, and what is wrong with it."""
    lock, problems, components = locked(), [], []
    for found in sorted(installed(), key=lambda d: normal(d.metadata["Name"])):
        name, said = normal(found.metadata["Name"]), licence(found)
        version, hashes = lock.get(name, ("", []))
        if not version:
            problems.append(f"{name} {found.version} is not locked")
        elif version != found.version:
            problems.append(f"{name} is {found.version} here and {version} in the lock")
        if not said or NOT_KEPT.search(said):
            problems.append(f"{name}: licence {said or 'unknown'}")
        components.append(component(found, hashes if version == found.version else []))
    about: dict[str, str] = {}
    exec((ROOT / "engine" / "version.py").read_text(encoding="utf-8"), about)  # noqa: S102 - our own constant
    body = {
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "version": 1,
        "metadata": {
            "component": {
                "type": "application", "bom-ref": "tessera", "name": "tessera", "version": about["__version__"],
                "licenses": [{"license": {"id": "Apache-2.0"}}],
            },
        },
        "components": [*components, *models()],
    }  # fmt: skip
    return body, problems


def main(argv: list[str]) -> int:
    """Write the bill to a file or to standard output; returns the exit code."""
    body, problems = bill()
    text = json.dumps(body, indent=1, sort_keys=True) + "\n"
    if argv:
        Path(argv[0]).write_text(text, encoding="utf-8")
        sys.stdout.write(f"{len(body['components'])} components in {argv[0]}\n")
    else:
        sys.stdout.write(text)
    for problem in problems:
        sys.stderr.write(f"{problem}\n")
    return int(bool(problems))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
