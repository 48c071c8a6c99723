"""`python installers/sbom.py [FILE]`: write a CycloneDX 1.6 bill of materials. Needs no network.

Components are the packages that `tessera` needs in the current environment, with licence and the hashes from their
lock file, and the bundled model. Exit code 1: a licence is unknown or incompatible with Tessera's, or a package is
not in the lock.
"""

import hashlib
import json
import re
import sys
import tomllib
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, Final

from packaging.markers import Marker
from packaging.utils import canonicalize_name

ROOT: Final = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from app.licences import EXTRAS, UNSAID, Component, packages
from engine.core.version import __version__

LOCKS: Final = ("desktop", "llama", "model")
# Licences that demand more of the whole program than Apache-2.0. LGPL, MPL and EPL apply per file. If a package
# offers several licences, one compatible licence is enough.
NOT_KEPT: Final = re.compile(r"(?<!L)GPL|AGPL|SSPL|BUSL|Commons Clause|Proprietary", re.IGNORECASE)
_LINE: Final = re.compile(r"^([A-Za-z0-9._-]+)==([^ ;\\]+)(?:\s*;([^\\]*))?")
_HASH: Final = re.compile(r"--hash=sha256:([0-9a-f]{64})")


def locked(locks: Iterable[str] = LOCKS) -> dict[str, tuple[str, list[str]]]:
    """Package name to version and SHA-256 of every file that may be installed, for this Python and system."""
    pins: dict[str, tuple[str, list[str]]] = {}
    for lock in locks:
        path = ROOT / "installers" / "lock" / f"{lock}.txt"
        name = ""
        for line in path.read_text(encoding="utf-8").splitlines() if path.exists() else ():
            if match := _LINE.match(line):
                applies = match[3] is None or Marker(match[3].strip()).evaluate()
                name = canonicalize_name(match[1]) if applies else ""
                if applies:
                    pins.setdefault(name, (match[2], []))
            pins.get(name, ("", []))[1].extend(_HASH.findall(line))
    return pins


def asked_for() -> list[str]:
    """The requirements in pyproject.toml, with those of all parts; the installed metadata may be older."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    extras = project["optional-dependencies"]
    return [*project["dependencies"], *(words for name in EXTRAS if name for words in extras[name])]


def component(part: Component, hashes: list[str]) -> dict[str, Any]:
    """One package as a CycloneDX component."""
    name, version = canonicalize_name(part.name), part.version
    purl = f"pkg:pypi/{name}@{version}"
    body: dict[str, Any] = {"type": "library", "bom-ref": purl, "name": name, "version": version, "purl": purl}
    if part.licence != UNSAID:
        body["licenses"] = [{"license": {"name": part.licence}}]
    if hashes:
        urls = [{"type": "distribution", "url": purl, "hashes": [{"alg": "SHA-256", "content": h} for h in hashes]}]
        body["externalReferences"] = urls
    return body


def models() -> Iterator[dict[str, Any]]:
    """The bundled models as CycloneDX components."""
    for path in sorted((ROOT / "assets" / "models").glob("*.gguf")):
        digest = hashlib.sha256(path.read_bytes()).hexdigest()
        ref = f"model:{path.stem}"
        yield {
            "type": "machine-learning-model", "bom-ref": ref, "name": path.stem, "version": digest[:12],
            "hashes": [{"alg": "SHA-256", "content": digest}],
        }  # fmt: skip


def bill() -> tuple[dict[str, Any], list[str]]:
    """The bill of materials, and a list of its problems."""
    lock, problems, components = locked(), [], []
    for part in sorted(packages(asked_for()), key=lambda part: canonicalize_name(part.name)):
        name = canonicalize_name(part.name)
        version, hashes = lock.get(name, ("", []))
        if not version:
            problems.append(f"{name} {part.version} is not locked")
        elif version != part.version:
            problems.append(f"{name} is {part.version} here and {version} in the lock")
        if part.licence == UNSAID or all(map(NOT_KEPT.search, part.licence.split(" OR "))):
            problems.append(f"{name}: licence {part.licence}")
        components.append(component(part, hashes if version == part.version else []))
    body = {
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "version": 1,
        "metadata": {
            "component": {
                "type": "application", "bom-ref": "tessera", "name": "tessera", "version": __version__,
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
