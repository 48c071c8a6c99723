"""`python installers/advisories.py FOLDER`: find locked packages with known vulnerabilities.

FOLDER holds OSV files (YAML or JSON), such as a checkout of PyPA's advisory-database, which pip-audit reads, or
safety-db's insecure.json. The check needs no network and prints the date of the newest advisory. Exit code 1: a hit
has no explanation in EXPLAINED, or the folder has no advisory for any Python package.
"""

import json
import sys
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, Final

import msgspec
import yaml  # type: ignore[import-untyped]
from packaging.specifiers import InvalidSpecifier, SpecifierSet
from packaging.utils import canonicalize_name
from packaging.version import InvalidVersion, Version

ROOT: Final = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from installers.sbom import locked

NEVER: Final = "999999999"
# Package and version with an advisory, and why it is not a risk for Tessera.
EXPLAINED: Final = {
    "diskcache 5.6.3": "what can write into its folder can run code, for it unpickles; llama-cpp-python asks for "
    "it, but nothing here imports it (engine/runner/llama/native/llama_api.py), and packages leave it out",
    "ray 2.60.0": "every version (CVE-2023-48022): who reaches Ray's dashboard can run programs; `tessera cluster` "
    "starts Ray without it, its other ports ask for a token, and packages leave Ray out",
}
LOCKS: Final = (
    "base", "desktop", "build", "bundle", "cluster", "dev", "llama", "model", "openvino", "site", "speech",
)  # fmt: skip


class Advisory(msgspec.Struct, frozen=True):
    """One known vulnerability in versions of one package."""

    id: str
    package: str
    affected: dict[str, Any]
    published: str
    summary: str

    def hits(self, version: str) -> bool:
        """Return whether this version is listed or is in one of the ranges."""
        if version in self.affected.get("versions", ()):
            return True
        if any(_matches(version, spec) for spec in self.affected.get("specifiers", ())):
            return True
        ranges = (r for r in self.affected.get("ranges", ()) if r.get("type") != "GIT")
        return any(_inside(Version(version), r.get("events", ())) for r in ranges)


def read(folder: Path) -> Iterator[Advisory]:
    """All advisories in the folder about Python packages, except withdrawn ones."""
    for path in sorted(folder.rglob("*")):
        if path.suffix not in {".yaml", ".json"}:
            continue
        text = path.read_text(encoding="utf-8")
        document = json.loads(text) if path.suffix == ".json" else yaml.load(text, Loader=yaml.CSafeLoader)
        if not isinstance(document, dict) or "withdrawn" in document:
            continue
        if "timestamp" in document.get("$meta", ()):
            yield from _safety_db(document)
            continue
        for affected in document.get("affected", ()):
            package = affected.get("package", {})
            if package.get("ecosystem") == "PyPI":
                yield Advisory(
                    id=document["id"],
                    package=canonicalize_name(package["name"]),
                    affected=affected,
                    published=str(document.get("published", ""))[:10],
                    summary=str(document.get("summary") or document.get("details", "")).split("\n")[0],
                )


def _safety_db(document: dict[str, Any]) -> Iterator[Advisory]:
    """Advisories from safety-db: version ranges per package, without a reason; dated by the whole list."""
    date = time.strftime("%Y-%m-%d", time.gmtime(document["$meta"]["timestamp"]))
    for package, specifiers in document.items():
        if not package.startswith("$"):
            yield Advisory(
                id="safety-db",
                package=canonicalize_name(package),
                affected={"specifiers": specifiers},
                published=date,
                summary=", ".join(specifiers),
            )


def hits_of(advisories: Iterable[Advisory], versions: dict[str, str]) -> list[Advisory]:
    """The advisories that hit one of the versions (by canonical name)."""
    return [a for a in advisories if a.package in versions and a.hits(versions[a.package])]


def _matches(version: str, specifier: str) -> bool:
    try:
        return SpecifierSet(specifier, prereleases=True).contains(version)
    except InvalidSpecifier:  # not comparable: report it, to be safe
        return True


def _inside(version: Version, events: Iterable[dict[str, Any]]) -> bool:
    """Apply OSV's rule: the last event at or below the version decides."""
    inside = False
    for kind, limit in sorted((_event(e) for e in events), key=lambda pair: pair[1]):
        if kind == "last_affected":
            inside = inside and version <= limit
        elif version >= limit:
            inside = kind == "introduced"
    return inside


def _event(event: dict[str, Any]) -> tuple[str, Version]:
    ((kind, version),) = event.items()
    try:
        return kind, Version(str(version))
    except InvalidVersion:  # not comparable: report it, to be safe
        return kind, Version("0" if kind == "introduced" else NEVER)


def main(argv: list[str]) -> int:
    """Print the hits and how much was compared; returns the exit code."""
    if len(argv) != 1:
        sys.stderr.write(f"{__doc__}\n")
        return 2
    advisories = list(read(Path(argv[0])))
    versions = {name: version for name, (version, _) in locked(LOCKS).items()}
    hits = hits_of(advisories, versions)
    covered = len({a.package for a in advisories} & set(versions))
    newest = max((a.published for a in advisories), default="none")
    print(f"{len(advisories)} advisories, newest {newest}; {covered} of {len(versions)} locked packages are named")
    unexplained = 0
    for each in hits:
        reason = EXPLAINED.get(f"{each.package} {versions[each.package]}")
        unexplained += reason is None
        suffix = f" - {reason}" if reason else ""
        print(f"{each.package} {versions[each.package]}: {each.id} {each.summary}{suffix}")
    print(f"{len(hits)} hit a locked version, {unexplained} of them unexplained")
    return int(bool(unexplained) or not advisories)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
