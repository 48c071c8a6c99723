"""Is a model on disk what it was promised to be: headers, sizes and sha256."""

from pathlib import Path

import msgspec

from engine.jobs.jobs import Control
from engine.library.catalogue import Catalogue
from engine.library.hashing import git_sha1_of, sha256_of
from engine.library.types import FileCheck, ModelEntry, Verification

_SHA256_HEX = 64


def verify(catalogue: Catalogue, entry: ModelEntry, control: Control) -> Verification:
    """Hash every file and compare; the hashes are remembered. Raises: Cancelled, Paused from `control`."""
    total = sum(file.size_bytes for file in entry.files)
    done = 0
    checks, files = [], []
    for file in entry.files:
        path = Path(file.path)
        promised = entry.origin.expected.get(path.name) or file.sha256
        try:
            actual = sha256_of(path, control, done=done, total=total)
            is_git = promised is not None and len(promised) != _SHA256_HEX
            matches = promised is None or promised == (git_sha1_of(path) if is_git else actual)
        except OSError as error:
            reason = error.strerror or str(error)
            checks.append(FileCheck(path=file.path, sha256=None, expected=promised, ok=False, problem=reason))
            files.append(file)
            continue
        done += file.size_bytes
        problem = None if matches else "the content is not what was promised"
        checks.append(FileCheck(path=file.path, sha256=actual, expected=promised, ok=matches, problem=problem))
        files.append(msgspec.structs.replace(file, sha256=actual) if matches else file)
    ok = all(check.ok for check in checks)
    if ok:
        catalogue.put(msgspec.structs.replace(entry, files=tuple(files), state="online"))
    return Verification(model=entry.id, ok=ok, basis=_basis(entry), files=tuple(checks))


def _basis(entry: ModelEntry) -> str:
    if entry.origin.expected:
        return "hub" if entry.origin.kind == "hub" else "owner"
    return "earlier" if any(file.sha256 for file in entry.files) else "none"
