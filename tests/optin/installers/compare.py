"""Opt-in: compares two builds of a package file by file, and shows where they differ.

    python tests/optin/installers/compare.py FIRST SECOND

FIRST and SECOND are two .deb, two .run or two folders of the program, built in different work folders. For a file
that differs it names the place: sections of a library, modules of the program's archive, lines of a text. Needs
dpkg-deb and readelf. Exits with 1 if anything differs.
"""

import argparse
import difflib
import hashlib
import marshal
import stat
import subprocess
import sys
import tempfile
import zlib
from collections.abc import Iterator
from pathlib import Path
from types import CodeType

MOST_LINES = 6


def unpacked(package: Path, folder: Path) -> Path:
    """The files of a package below `folder`; a folder is used directly."""
    if package.is_dir():
        return package
    command = {
        ".deb": ["dpkg-deb", "-R", str(package), str(folder)],
        ".run": ["sh", str(package), "--extract", str(folder)],
    }[package.suffix]
    subprocess.run(command, check=True)
    return folder


def listed(root: Path) -> dict[str, tuple[str, str]]:
    """Name: kind with mode, and the target of a link or the hash of a file."""
    found = {}
    for path in sorted(root.rglob("*")):
        mode = path.lstat().st_mode
        if path.is_symlink():
            found[str(path.relative_to(root))] = ("link", str(path.readlink()))
        elif path.is_file():
            held = hashlib.sha256(path.read_bytes()).hexdigest()
            found[str(path.relative_to(root))] = (f"file {stat.S_IMODE(mode):o}", held)
        else:
            found[str(path.relative_to(root))] = (f"folder {stat.S_IMODE(mode):o}", "")
    return found


def where(first: Path, second: Path) -> Iterator[str]:
    """The differences of two files, in terms of their format."""
    a, b = first.read_bytes(), second.read_bytes()
    if len(a) != len(b):
        yield f"{len(a):,} and {len(b):,} bytes"
    if a[:4] == b"\x7fELF":
        one, two = sections(first), sections(second)
        yield from (f"section {name}" for name in sorted(one.keys() | two.keys()) if one.get(name) != two.get(name))
        yield from archives(first, second)
        return
    try:
        lines = difflib.unified_diff(a.decode().splitlines(), b.decode().splitlines(), lineterm="", n=0)
    except UnicodeDecodeError:
        at = next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))
        yield f"from byte {at:,}: {a[at : at + 24]!r} and {b[at : at + 24]!r}"
        return
    yield from [line[:160] for line in lines if not line.startswith(("---", "+++", "@@"))][:MOST_LINES]


def sections(path: Path) -> dict[str, str]:
    """Hash by section of an ELF file."""
    said = subprocess.run(["readelf", "-SW", str(path)], capture_output=True, text=True, check=True).stdout
    data, found = path.read_bytes(), {}
    for line in said.splitlines():
        parts = line.partition("]")[2].split()
        if line.strip().startswith("[") and len(parts) > 4 and parts[0].startswith(".") and parts[1] != "NOBITS":
            offset, size = int(parts[3], 16), int(parts[4], 16)
            found[parts[0]] = hashlib.sha256(data[offset : offset + size]).hexdigest()
    return found


def archives(first: Path, second: Path) -> Iterator[str]:
    """Different entries in the archives that PyInstaller appends to its start program."""
    try:
        from PyInstaller.archive.readers import CArchiveReader, NotAnArchiveError
    except ImportError:
        yield "the archive inside was not read: PyInstaller is not installed"
        return
    try:
        one, two = CArchiveReader(str(first)), CArchiveReader(str(second))
    except NotAnArchiveError:
        return
    for name in sorted(one.toc.keys() | two.toc.keys()):
        if name not in one.toc or name not in two.toc:
            yield f"archive: {name} is in one of them only"
        elif one.toc[name][4] in {"z", "Z"}:
            yield from modules(one.open_embedded_archive(name), two.open_embedded_archive(name))
        elif one.extract(name) != two.extract(name):
            yield f"archive: {name}"


def modules(one, two) -> Iterator[str]:
    """Different modules, and their differences."""
    for name in sorted(one.toc.keys() | two.toc.keys()):
        if name not in one.toc or name not in two.toc:
            yield f"module {name} is in one of them only"
            continue
        a, b = one.extract(name, raw=True), two.extract(name, raw=True)
        if a != b:
            yield f"module {name}: {', '.join(sorted(code_differs(loaded(a), loaded(b)))) or 'its references only'}"


def loaded(raw: bytes):
    for data in (raw, zlib.decompress(raw) if raw[:1] == b"\x78" else b""):
        try:
            return marshal.loads(data)
        except (EOFError, ValueError, TypeError):
            continue
    return raw


def code_differs(a, b) -> set[str]:
    """Names of the different fields of a code object and of those inside it."""
    if not (isinstance(a, CodeType) and isinstance(b, CodeType)):
        return set() if a == b else {"contents"}
    found = set()
    for field in ("co_code", "co_names", "co_filename", "co_linetable", "co_varnames", "co_exceptiontable"):
        if getattr(a, field) != getattr(b, field):
            found.add(f"{a.co_name}.{field}")
    for x, y in zip(a.co_consts, b.co_consts, strict=False):
        if isinstance(x, CodeType) or isinstance(y, CodeType):
            found |= code_differs(x, y)
        elif repr(x) != repr(y):
            found.add(f"{a.co_name}.co_consts {repr(x)[:60]} and {repr(y)[:60]}")
    return found


def main() -> int:
    """Compare, and print the differences."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("first", type=Path)
    parser.add_argument("second", type=Path)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="compare-") as scratch:
        roots = [unpacked(p, Path(scratch) / str(n)) for n, p in enumerate((options.first, options.second))]
        one, two = map(listed, roots)
        differing = sorted(name for name in one.keys() | two.keys() if one.get(name) != two.get(name))
        for name in differing:
            if name not in one or name not in two:
                print(f"{name}: in {'the first' if name in one else 'the second'} only")
            elif one[name][0] != two[name][0] or not one[name][0].startswith("file"):
                print(f"{name}: {' '.join(one[name])} and {' '.join(two[name])}")
            else:
                print(f"{name}:")
                for line in where(roots[0] / name, roots[1] / name):
                    print(f"    {line}")
        whole = options.first.is_file() and options.first.read_bytes() == options.second.read_bytes()
        same = len(one.keys() & two.keys()) - sum(name in one and name in two for name in differing)
        equal = ", the packages are equal" if whole else ""
        print(f"{same} files, links and folders are the same, {len(differing)} differ{equal}")
    return int(bool(differing))


if __name__ == "__main__":
    sys.exit(main())
