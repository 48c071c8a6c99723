"""Builds the .deb and the self-extracting .run from the program's folder."""

import gzip
import io
import os
import shutil
import subprocess
import sys
import tarfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from installers.bundle.make import EPOCH, ROOT
from installers.linux.manual import completion, manual

ID: Final = "io.github.tessera.Tessera"
HERE: Final = Path(__file__).parent
# System libraries that PySide6 and ggml need. Source: NEEDED entries that the folder itself does not contain.
# Debian 13 renamed GLib's package for 64-bit times; the old name comes second.
DEPENDS: Final = (
    "libc6 (>= 2.34)", "libstdc++6 (>= 12)", "libgcc-s1", "zlib1g", "libzstd1", "libexpat1", "libgl1",
    "libegl1", "libx11-6", "libx11-xcb1", "libxkbcommon0", "libxkbcommon-x11-0", "libdbus-1-3",
    "libfontconfig1", "libfreetype6", "libglib2.0-0t64 | libglib2.0-0", "libgssapi-krb5-2", "libxcb1",
    "libxcb-cursor0", "libxcb-icccm4", "libxcb-image0", "libxcb-keysyms1", "libxcb-randr0", "libxcb-render0",
    "libxcb-render-util0", "libxcb-shape0", "libxcb-shm0", "libxcb-sync1", "libxcb-xfixes0", "libxcb-xkb1",
    "libwayland-client0", "libwayland-cursor0", "fontconfig",
)  # fmt: skip
RECOMMENDS: Final = (
    "mesa-vulkan-drivers", "libvulkan1", "ca-certificates", "fonts-noto-color-emoji", "xdg-utils", "bubblewrap",
)  # fmt: skip
MAINTAINER: Final = "The Tessera authors <tessera@localhost>"
COPYRIGHT: Final = """Copyright 2026 The Tessera authors

Tessera is under the Apache License, Version 2.0; on Debian systems its text is in
/usr/share/common-licenses/Apache-2.0.

It holds Python and libraries of others under licences of their own: `tessera licences`
and About Tessera show each with its text.
"""
AFTER: Final = """#!/bin/sh
set -e
if [ "$1" = configure ]; then
  for tool in "update-mime-database /usr/share/mime" "update-desktop-database -q" \\
      "gtk-update-icon-cache -q -t -f /usr/share/icons/hicolor"; do
    if command -v "${tool%% *}" >/dev/null 2>&1; then $tool || true; fi
  done
fi
"""


def tree(program: Path, target: Path, version: str) -> None:
    """Write the package's files below `target`, in their installed layout."""
    shutil.copytree(program, target / "usr/lib/tessera", symlinks=True)
    for path in (target / "usr/lib/tessera").rglob("*"):
        if path.is_file() and not path.is_symlink():  # wheels mark libraries and even texts as executable
            path.chmod(0o755 if _is_program(path) else 0o644)
        elif path.is_dir() and not path.is_symlink():  # kernel packs are unpacked with owner-only permissions
            path.chmod(0o755)
    share = target / "usr/share"
    (target / "usr/bin").mkdir(parents=True)
    (target / "usr/bin/tessera").symlink_to("../lib/tessera/tessera")
    when = time.strftime("%Y-%m-%d", time.gmtime(int(os.environ.get("SOURCE_DATE_EPOCH", EPOCH))))
    info = (HERE / f"{ID}.metainfo.xml.in").read_text("utf-8").replace("@VERSION@", version).replace("@DATE@", when)
    _write(share / "metainfo" / f"{ID}.metainfo.xml", info.encode())
    _write(share / "applications" / f"{ID}.desktop", (HERE / f"{ID}.desktop").read_bytes())
    _write(share / "mime/packages/tessera.xml", (HERE / "tessera.xml").read_bytes())
    icon = (ROOT / "assets/icons/tessera.svg").read_bytes()
    _write(share / "icons/hicolor/scalable/apps" / f"{ID}.svg", icon)
    _write(share / "icons/hicolor/scalable/mimetypes/application-x-gguf.svg", icon)
    _write(target / "usr/lib/systemd/user/tessera.service", (HERE / "tessera.service").read_bytes())
    _write(share / "man/man1/tessera.1.gz", gzip.compress(manual(version).encode(), mtime=0))
    for shell, place in (
        ("bash", "bash-completion/completions/tessera"),
        ("zsh", "zsh/vendor-completions/_tessera"),
        ("fish", "fish/vendor_completions.d/tessera.fish"),
    ):
        _write(share / place, completion(shell).encode())
    _write(share / "doc/tessera/copyright", COPYRIGHT.encode())
    _write(share / "doc/tessera/CHANGELOG.md.gz", gzip.compress((ROOT / "CHANGELOG.md").read_bytes(), mtime=0))


def deb(program: Path, out: Path, version: str, work: Path) -> Path:
    """A Debian package of the folder; the same folder gives the same bytes."""
    root = work / "deb"
    shutil.rmtree(root, ignore_errors=True)
    tree(program, root, version)
    share = root / "usr/share"
    _write(share / "doc/tessera/changelog.gz", gzip.compress(_debian_changelog(version).encode(), mtime=0))
    _write(share / "lintian/overrides/tessera", (HERE / "lintian-overrides").read_bytes())
    installed = sum(p.lstat().st_size for p in root.rglob("*") if p.is_file() and not p.is_symlink())
    arch = {"x86_64": "amd64", "aarch64": "arm64"}[os.uname().machine]
    control = (
        f"Package: tessera\nVersion: {version}\nArchitecture: {arch}\nSection: science\nPriority: optional\n"
        f"Maintainer: {MAINTAINER}\nInstalled-Size: {installed >> 10}\n"
        f"Depends: {', '.join(DEPENDS)}\nRecommends: {', '.join(RECOMMENDS)}\n"
        "Description: run open AI models on your own computer\n"
        " Tessera finds out what this computer can do, makes an open model fit by\n"
        " choosing the precision of every tensor, and runs it: in a window, in the\n"
        " terminal, and behind an OpenAI-style server for editors and agents.\n"
    )
    _write(root / "DEBIAN/control", control.encode())
    for name in ("postinst", "postrm"):
        body = AFTER if name == "postinst" else AFTER.replace('"$1" = configure', '"$1" = remove')
        _write(root / "DEBIAN" / name, body.encode(), 0o755)
    _date(root)
    target = out / f"tessera_{version}_{arch}.deb"
    command = ["dpkg-deb", "--root-owner-group", "-Zxz", "-z6", "--build", str(root), str(target)]
    env = {**os.environ, "SOURCE_DATE_EPOCH": os.environ.get("SOURCE_DATE_EPOCH", EPOCH)}
    subprocess.run(command, check=True, env=env, stdout=subprocess.DEVNULL)
    return target


RUN_HEAD: Final = """#!/bin/sh
# Tessera {version}: unpacks itself below PREFIX (default: ~/.local) and registers the program. --help says more.
set -e
prefix="${{HOME}}/.local"
usage="usage: $0 [--prefix FOLDER] [--remove], or: $0 --extract FOLDER"
refuse() {{ echo "$0: $1" >&2; echo "$usage" >&2; exit 2; }}
unpack() {{
  command -v xz >/dev/null 2>&1 || {{
    echo "This file is packed with xz, which is not here: install xz-utils, then run this again." >&2; exit 3
  }}
  mkdir -p "$1"
  tail -n +{lines} "$0" | tar -xJ -C "$@"
}}
quietly() {{ command -v "$1" >/dev/null 2>&1 && "$@" >/dev/null 2>&1 || true; }}
tell_desktop() {{
  quietly update-desktop-database -q "$prefix/share/applications"
  quietly update-mime-database "$prefix/share/mime"
}}
action=install
while [ $# -gt 0 ]; do
  case "$1" in
    --help) echo "$usage"; exit 0;;
    --remove) action=remove;;
    --prefix | --extract)
      case "$2" in "" | --*) refuse "$1 needs a folder";; esac
      case "$1" in --prefix) prefix="$2";; *) action=extract; folder="$2";; esac
      shift;;
    *) refuse "unknown option $1";;
  esac
  shift
done
if [ $action = extract ]; then unpack "$folder"; exit 0; fi
case "$prefix" in /*) ;; *) prefix="$PWD/$prefix";; esac
if [ $action = remove ]; then
  [ -e "$prefix/lib/tessera" ] || {{
    echo "There is no Tessera below $prefix. If it is elsewhere: $0 --remove --prefix FOLDER" >&2; exit 1
  }}
  rm -rf "$prefix/lib/tessera" "$prefix/share/doc/tessera"
  for file in {files}; do rm -f "$prefix/$file"; done
  tell_desktop
  echo "Removed. Models and chats are where they were."
  exit 0
fi
case "$prefix" in *[\\\\\\"\\$\\`%\\|\\&]*) refuse "a menu entry cannot name the folder $prefix";; esac
echo "Installing Tessera {version} below $prefix ..."
new="$prefix/.tessera-new"
rm -rf "$new"
unpack "$new" --strip-components=1
mkdir -p "$prefix/lib"
rm -rf "$prefix/lib/tessera" "$prefix/bin/tessera"
mv "$new/lib/tessera" "$prefix/lib/tessera"
cp -RP "$new/." "$prefix/"
rm -rf "$new"
sed -i "s|^Exec=tessera|Exec=\\"$prefix/bin/tessera\\"|" "$prefix/share/applications/{id}.desktop"
sed -i "s|/usr/bin/tessera|\\"$prefix/bin/tessera\\"|" "$prefix/lib/systemd/user/tessera.service"
tell_desktop
echo "Done: $prefix/bin/tessera"
case ":$PATH:" in *":$prefix/bin:"*) ;; *) echo "$prefix/bin is not on your PATH.";; esac
exit 0
"""


def run_file(program: Path, out: Path, version: str, work: Path) -> Path:
    """A self-extracting shell script with the package's files, for any Linux with glibc 2.34 or newer."""
    root = work / "run"
    shutil.rmtree(root, ignore_errors=True)
    tree(program, root, version)
    own = (path.relative_to(root / "usr") for path in _sorted(root / "usr") if path.is_symlink() or path.is_file())
    files = " ".join(str(path) for path in own if not path.is_relative_to("lib/tessera"))
    head = RUN_HEAD.format(version=version, id=ID, files=files, lines=RUN_HEAD.count("\n") + 1)
    packed = io.BytesIO()
    epoch = int(os.environ.get("SOURCE_DATE_EPOCH", EPOCH))
    with tarfile.open(fileobj=packed, mode="w:xz", preset=6) as archive:
        for path in _sorted(root / "usr"):
            member = archive.gettarinfo(path, arcname=str(path.relative_to(root)))
            member.uid = member.gid = 0
            member.uname = member.gname = "root"
            member.mtime = epoch
            if member.isfile():
                with path.open("rb") as file:
                    archive.addfile(member, file)
            else:
                archive.addfile(member)
    target = out / f"tessera-{version}-linux-{os.uname().machine}.run"
    target.write_bytes(head.encode() + packed.getvalue())
    target.chmod(0o755)
    return target


def _sorted(root: Path) -> Iterator[Path]:
    for folder, folders, files in os.walk(root):
        folders.sort()
        yield Path(folder)
        links = [name for name in folders if (Path(folder) / name).is_symlink()]
        yield from (Path(folder) / name for name in sorted([*files, *links]))


def _is_program(path: Path) -> bool:
    with path.open("rb") as file:
        head = file.read(4)
    return head[:2] == b"#!" or (head == b"\x7fELF" and ".so" not in path.name)


def _debian_changelog(version: str) -> str:
    when = time.strftime(
        "%a, %d %b %Y %H:%M:%S +0000", time.gmtime(int(os.environ.get("SOURCE_DATE_EPOCH", EPOCH)))
    )
    return f"tessera ({version}) stable; urgency=medium\n\n  * See CHANGELOG.md.gz.\n\n -- {MAINTAINER}  {when}\n"


def _write(path: Path, data: bytes, mode: int = 0o644) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)
    path.chmod(mode)


def _date(root: Path) -> None:
    epoch = int(os.environ.get("SOURCE_DATE_EPOCH", EPOCH))
    for path in root.rglob("*"):
        os.utime(path, (epoch, epoch), follow_symlinks=False)


if sys.platform == "win32":
    raise SystemExit("Linux packages are made on Linux.")
