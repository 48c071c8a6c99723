"""Finds missing system packages, and the command that installs them."""

import ctypes.util
import os
import shutil
import subprocess
import sys
from importlib.util import find_spec

from installers.bootstrap.progress import show

# need: (programs, any of which is enough, (apt, dnf, pacman)). Shared libraries are listed by soname.
_TOOLS = {
    "a C++ compiler": (("g++", "clang++"), ("g++", "gcc-c++", "gcc")),
    "a C compiler": (("gcc", "clang"), ("gcc", "gcc", "gcc")),
}
# The window tests (tests/gui/walk) need a virtual X server, a window manager and xdotool. The sandbox tests need
# bubblewrap.
_TEST_TOOLS = {
    "an X server for tests": (("Xvfb",), ("xvfb", "xorg-x11-server-Xvfb", "xorg-server-xvfb")),
    "a window manager for tests": (("openbox",), ("openbox", "openbox", "openbox")),
    "xdotool": (("xdotool",), ("xdotool", "xdotool", "xdotool")),
    "a sandbox for tests": (("bwrap",), ("bubblewrap", "bubblewrap", "bubblewrap")),
}
# Source: NEEDED entries of PySide6-Essentials' libraries and of its xcb platform plugin.
_QT_LIBRARIES = {
    "libGL.so.1": ("libgl1", "mesa-libGL", "libglvnd"),
    "libEGL.so.1": ("libegl1", "mesa-libEGL", "libglvnd"),
    "libX11-xcb.so.1": ("libx11-xcb1", "libX11-xcb", "libx11"),
    "libxkbcommon.so.0": ("libxkbcommon0", "libxkbcommon", "libxkbcommon"),
    "libxkbcommon-x11.so.0": ("libxkbcommon-x11-0", "libxkbcommon-x11", "libxkbcommon-x11"),
    "libdbus-1.so.3": ("libdbus-1-3", "dbus-libs", "dbus"),
    "libfontconfig.so.1": ("libfontconfig1", "fontconfig", "fontconfig"),
    "libfreetype.so.6": ("libfreetype6", "freetype", "freetype2"),
    "libglib-2.0.so.0": ("libglib2.0-0", "glib2", "glib2"),
    "libgssapi_krb5.so.2": ("libgssapi-krb5-2", "krb5-libs", "krb5"),
    "libxcb-cursor.so.0": ("libxcb-cursor0", "xcb-util-cursor", "xcb-util-cursor"),
    "libxcb-icccm.so.4": ("libxcb-icccm4", "xcb-util-wm", "xcb-util-wm"),
    "libxcb-image.so.0": ("libxcb-image0", "xcb-util-image", "xcb-util-image"),
    "libxcb-keysyms.so.1": ("libxcb-keysyms1", "xcb-util-keysyms", "xcb-util-keysyms"),
    "libxcb-randr.so.0": ("libxcb-randr0", "libxcb", "libxcb"),
    "libxcb-render-util.so.0": ("libxcb-render-util0", "xcb-util-renderutil", "xcb-util-renderutil"),
    "libxcb-shape.so.0": ("libxcb-shape0", "libxcb", "libxcb"),
    "libxcb-shm.so.0": ("libxcb-shm0", "libxcb", "libxcb"),
    "libxcb-sync.so.1": ("libxcb-sync1", "libxcb", "libxcb"),
    "libxcb-xfixes.so.0": ("libxcb-xfixes0", "libxcb", "libxcb"),
    "libxcb-xkb.so.1": ("libxcb-xkb1", "libxcb", "libxcb"),
    "libwayland-client.so.0": ("libwayland-client0", "libwayland-client", "wayland"),
    "libwayland-cursor.so.0": ("libwayland-cursor0", "libwayland-cursor", "wayland"),
}
_FONTS = ("fonts-dejavu-core", "dejavu-sans-fonts", "ttf-dejavu")
_MANAGERS = {
    "apt-get": (0, "apt-get install -y {}"),
    "dnf": (1, "dnf install -y {}"),
    "pacman": (2, "pacman -S --needed --noconfirm {}"),
}


def _known_libraries() -> str:
    for ldconfig in ("ldconfig", "/sbin/ldconfig", "/usr/sbin/ldconfig"):
        try:
            result = subprocess.run([ldconfig, "-p"], capture_output=True, text=True, check=False)
        except OSError:
            continue
        if result.returncode == 0:
            return result.stdout
    return ""


def missing(
    *, gui: bool, compiler: bool, tests: bool = False, venv: bool = True
) -> dict[str, tuple[str, str, str]]:
    """Needs that this Linux system does not meet, each with its apt, dnf and pacman package.

    venv: an environment must be created, for which Debian and Ubuntu have a separate package.
    """
    packages_by_need: dict[str, tuple[str, str, str]] = {}
    if venv and sys.base_prefix == "/usr" and find_spec("ensurepip") is None:
        name = f"python{sys.version_info[0]}.{sys.version_info[1]}"
        packages_by_need["Python's venv with ensurepip"] = (f"{name}-venv", "python3", "python")
    for need, (programs, packages) in {**(_TOOLS if compiler else {}), **(_TEST_TOOLS if tests else {})}.items():
        if not any(shutil.which(p) for p in programs):
            packages_by_need[need] = packages
    if gui:
        libraries = _known_libraries()
        for soname, packages in _QT_LIBRARIES.items():
            name = soname.split(".so")[0].removeprefix("lib")
            if soname not in libraries and (libraries or not ctypes.util.find_library(name)):
                packages_by_need[soname] = packages
        if not shutil.which("fc-list") and not os.path.isdir("/usr/share/fonts"):
            packages_by_need["a font"] = _FONTS
    return packages_by_need


def install_line(needs: dict[str, tuple[str, str, str]]) -> str | None:
    """One command that installs the packages, or None if no known package manager is installed."""
    for manager, (column, template) in _MANAGERS.items():
        if shutil.which(manager):
            packages = sorted({packages[column] for packages in needs.values()})
            return template.format(" ".join(packages))
    return None


def _as_root(line: str) -> str:
    """The command for this user to type; a fresh Debian has no sudo."""
    if os.geteuid() == 0:
        return line
    return f"sudo {line}" if shutil.which("sudo") or not shutil.which("su") else f"su -c '{line}'"


def provide(*, gui: bool, compiler: bool, allowed: bool, tests: bool = False, venv: bool = True) -> bool:
    """Check the system packages; False if the user must act first.

    As root, the install command is shown and run, unless not `allowed`; otherwise it is only shown.
    """
    if sys.platform == "darwin":
        return _provide_macos(compiler=compiler)
    if sys.platform != "linux":
        return True
    needs = missing(gui=gui, compiler=compiler, tests=tests, venv=venv)
    if not needs:
        return True
    show(f"Missing on this system: {', '.join(needs)}")
    line = install_line(needs)
    if line is None:
        show("No known package manager was found; install these with your system's own.")
        return False
    if os.geteuid() != 0 or not allowed:
        show(f"Install them with:\n    {_as_root(line)}\nand start again.")
        if gui and needs != missing(gui=False, compiler=compiler, tests=tests, venv=venv):
            show("(Or leave the window out: python3 start.py --no-gui)")
        return False
    show(f"Running: {line}")
    environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    if line.startswith("apt-get"):
        subprocess.run(["apt-get", "update", "-q"], stdout=subprocess.DEVNULL, env=environment, check=False)
    done = subprocess.run(line.split(), stdout=subprocess.DEVNULL, env=environment, check=False)
    still = missing(gui=gui, compiler=compiler, tests=tests, venv=venv) if done.returncode == 0 else needs
    if still:
        show(f"Still missing: {', '.join(still)}. Install them by hand and start again.")
    return not still


def _provide_macos(*, compiler: bool) -> bool:
    if compiler and not shutil.which("clang++"):
        show("A compiler is missing. Install Apple's with:\n    xcode-select --install\nand start again.")
        return False
    return True
