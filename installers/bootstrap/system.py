"""Finds out whether this system suits, which system packages are missing, and the command that installs them."""

import glob
import os
import re
import shutil
import subprocess
import sys
import sysconfig
from contextlib import suppress
from importlib.util import find_spec

from devices.distribution import Distribution, Family, parsed
from installers.bootstrap.progress import show

# The packages of a need: for apt, dnf, pacman and zypper.
Packages = tuple[str, str, str, str]
# need: (programs, any of which is enough, its packages). Shared libraries are listed by soname.
_TOOLS: dict[str, tuple[tuple[str, ...], Packages]] = {
    "a C++ compiler": (("g++", "clang++"), ("g++", "gcc-c++", "gcc", "gcc-c++")),
    "a C compiler": (("gcc", "clang"), ("gcc", "gcc", "gcc", "gcc")),
}
# The window tests (tests/gui/walk) need a virtual X server, a window manager and xdotool. The sandbox tests need
# bubblewrap.
_TEST_TOOLS: dict[str, tuple[tuple[str, ...], Packages]] = {
    "an X server for tests": (
        ("Xvfb",),
        ("xvfb", "xorg-x11-server-Xvfb", "xorg-server-xvfb", "xorg-x11-server-Xvfb"),
    ),
    "a window manager for tests": (("openbox",), ("openbox", "openbox", "openbox", "openbox")),
    "xdotool": (("xdotool",), ("xdotool", "xdotool", "xdotool", "xdotool")),
    "a sandbox for tests": (("bwrap",), ("bubblewrap", "bubblewrap", "bubblewrap", "bubblewrap")),
}
# Source: NEEDED entries of PySide6-Essentials' libraries and of its xcb platform plugin. openSUSE's names are those
# of the packages that provide the soname in Tumbleweed.
_QT_LIBRARIES: dict[str, Packages] = {
    "libGL.so.1": ("libgl1", "mesa-libGL", "libglvnd", "Mesa-libGL1"),
    "libEGL.so.1": ("libegl1", "mesa-libEGL", "libglvnd", "Mesa-libEGL1"),
    "libX11-xcb.so.1": ("libx11-xcb1", "libX11-xcb", "libx11", "libX11-xcb1"),
    "libxkbcommon.so.0": ("libxkbcommon0", "libxkbcommon", "libxkbcommon", "libxkbcommon0"),
    "libxkbcommon-x11.so.0": ("libxkbcommon-x11-0", "libxkbcommon-x11", "libxkbcommon-x11", "libxkbcommon-x11-0"),
    "libdbus-1.so.3": ("libdbus-1-3", "dbus-libs", "dbus", "libdbus-1-3"),
    "libfontconfig.so.1": ("libfontconfig1", "fontconfig", "fontconfig", "libfontconfig1"),
    "libfreetype.so.6": ("libfreetype6", "freetype", "freetype2", "libfreetype6"),
    "libglib-2.0.so.0": ("libglib2.0-0", "glib2", "glib2", "libglib-2_0-0"),
    "libgssapi_krb5.so.2": ("libgssapi-krb5-2", "krb5-libs", "krb5", "krb5"),
    "libxcb-cursor.so.0": ("libxcb-cursor0", "xcb-util-cursor", "xcb-util-cursor", "libxcb-cursor0"),
    "libxcb-icccm.so.4": ("libxcb-icccm4", "xcb-util-wm", "xcb-util-wm", "libxcb-icccm4"),
    "libxcb-image.so.0": ("libxcb-image0", "xcb-util-image", "xcb-util-image", "libxcb-image0"),
    "libxcb-keysyms.so.1": ("libxcb-keysyms1", "xcb-util-keysyms", "xcb-util-keysyms", "libxcb-keysyms1"),
    "libxcb-randr.so.0": ("libxcb-randr0", "libxcb", "libxcb", "libxcb-randr0"),
    "libxcb-render-util.so.0": (
        "libxcb-render-util0",
        "xcb-util-renderutil",
        "xcb-util-renderutil",
        "libxcb-render-util0",
    ),
    "libxcb-shape.so.0": ("libxcb-shape0", "libxcb", "libxcb", "libxcb-shape0"),
    "libxcb-shm.so.0": ("libxcb-shm0", "libxcb", "libxcb", "libxcb-shm0"),
    "libxcb-sync.so.1": ("libxcb-sync1", "libxcb", "libxcb", "libxcb-sync1"),
    "libxcb-xfixes.so.0": ("libxcb-xfixes0", "libxcb", "libxcb", "libxcb-xfixes0"),
    "libxcb-xkb.so.1": ("libxcb-xkb1", "libxcb", "libxcb", "libxcb-xkb1"),
    "libwayland-client.so.0": ("libwayland-client0", "libwayland-client", "wayland", "libwayland-client0"),
    "libwayland-cursor.so.0": ("libwayland-cursor0", "libwayland-cursor", "wayland", "libwayland-cursor0"),
}
_FONTS = ("fonts-dejavu-core", "dejavu-sans-fonts", "ttf-dejavu", "dejavu-fonts")
# family: (its package manager, the column of its packages, the command).
_MANAGERS: dict[Family, tuple[str, int, str]] = {
    "debian": ("apt-get", 0, "apt-get install -y {}"),
    "fedora": ("dnf", 1, "dnf install -y {}"),
    "arch": ("pacman", 2, "pacman -S --needed --noconfirm {}"),
    "suse": ("zypper", 3, "zypper --non-interactive install {}"),
}
# Without these, set-up downloads nothing and llama.cpp does not run. Some Pythons built by hand lack them.
_MODULES = ("_ctypes", "_ssl", "zlib")
# The oldest glibc, with and without the window. Source: tags of the wheels of PySide6-Essentials and onnxruntime.
_GLIBC: dict[bool, tuple[int, ...]] = {True: (2, 34), False: (2, 28)}


def unsuited(*, gui: bool) -> str:
    """Why the locked packages do not run here, as the end of a sentence; empty if they do."""
    if sys.implementation.name != "cpython" or sysconfig.get_config_var("Py_GIL_DISABLED"):
        return f"{sys.executable} is not the usual CPython with its global lock. Start it with another Python."
    if sys.maxsize < 1 << 32:
        return f"{sys.executable} is a program for 32 bits. Start it with a Python for 64 bits."
    lacking = [name for name in _MODULES if find_spec(name) is None]
    if lacking:
        return (
            f"{sys.executable} was built without {' and '.join(lacking)}. Start it with another Python, such as "
            "/usr/bin/python3."
        )
    oldest, here = _GLIBC[gui], _glibc() if sys.platform == "linux" else _GLIBC[True]
    if here >= oldest:
        return ""
    version = "glibc {}.{}".format(*here) if here else "another C library"
    reason = "its packages need glibc {}.{} or newer, and this system has {}.".format(*oldest, version)
    if here >= _GLIBC[False]:
        reason += " Without the window it can: python3 start.py --no-gui"
    return reason


def _glibc() -> tuple[int, ...]:
    """The version of glibc; empty for another C library, such as musl."""
    version = ""
    with suppress(ValueError, OSError):
        version = os.confstr("CS_GNU_LIBC_VERSION") or ""
    match = re.match(r"glibc (\d+)\.(\d+)", version)
    return (int(match[1]), int(match[2])) if match else ()


def this_distribution() -> Distribution:
    """The Linux distribution of this computer."""
    for path in ("/etc/os-release", "/usr/lib/os-release"):
        with suppress(OSError), open(path, encoding="utf-8", errors="replace") as file:
            return parsed(file.read(), is_ostree=os.path.exists("/run/ostree-booted"))
    return Distribution()


def _loads(soname: str) -> bool:
    """Whether the loader finds a library, as it will for Qt; also in LD_LIBRARY_PATH, and without ldconfig."""
    import ctypes

    try:
        ctypes.CDLL(soname)
    except OSError:
        return False
    return True


def missing(*, gui: bool, compiler: bool, tests: bool = False, venv: bool = True) -> dict[str, Packages]:
    """Needs that this Linux system does not meet, each with its packages.

    venv: an environment must be created, for which Debian and Ubuntu have a separate package.
    """
    packages_by_need: dict[str, Packages] = {}
    if venv and sys.base_prefix == "/usr" and find_spec("ensurepip") is None:
        major, minor = sys.version_info[:2]
        packages = (f"python{major}.{minor}-venv", "python3", "python", f"python{major}{minor}")
        packages_by_need["Python's venv with ensurepip"] = packages
    for need, (programs, packages) in {**(_TOOLS if compiler else {}), **(_TEST_TOOLS if tests else {})}.items():
        if not any(shutil.which(p) for p in programs):
            packages_by_need[need] = packages
    if gui:
        packages_by_need |= {name: packages for name, packages in _QT_LIBRARIES.items() if not _loads(name)}
        if not shutil.which("fc-list") and not os.path.isdir("/usr/share/fonts"):
            packages_by_need["a font"] = _FONTS
    return packages_by_need


def install_line(needs: dict[str, Packages]) -> str | None:
    """One command that installs the packages, or None if no known package manager is installed."""
    here = this_distribution()
    # Other distributions' package managers can be installed too, such as apt on Fedora.
    for family in sorted(_MANAGERS, key=lambda family: family != here.family):
        manager, column, template = _MANAGERS[family]
        packages = " ".join(sorted({packages[column] for packages in needs.values()}))
        if here.image_based:
            return here.install(packages)
        if shutil.which(manager):
            return template.format(packages)
    return None


def _as_root(line: str) -> str:
    """The commands for this user to type; a fresh Debian has no sudo, and a fresh image no lists of packages."""
    lines = [line]
    if line.startswith("apt-get") and not glob.glob("/var/lib/apt/lists/*_Packages*"):
        lines = ["apt-get update", line]
    if os.geteuid() == 0:
        return " && ".join(lines)
    if shutil.which("sudo") or not shutil.which("su"):
        return " && ".join(f"sudo {part}" for part in lines)
    return f"su -c '{' && '.join(lines)}'"


def provide(*, gui: bool, compiler: bool, allowed: bool, tests: bool = False, venv: bool = True) -> bool:
    """Check the system packages; False if the user must act first.

    As root, the install command is shown and run, unless not `allowed`; otherwise it is only shown.
    """
    if sys.platform == "darwin":
        return _provide_macos(compiler=compiler)
    if sys.platform == "win32":
        return _provide_windows(compiler=compiler)
    if sys.platform != "linux":
        return True
    needs = missing(gui=gui, compiler=compiler, tests=tests, venv=venv)
    if not needs:
        return True
    show(f"Missing on this system: {', '.join(needs)}")
    line = install_line(needs)
    if line is None or os.geteuid() != 0 or not allowed or this_distribution().image_based:
        _show_step(line)
        if line and gui and needs != missing(gui=False, compiler=compiler, tests=tests, venv=venv):
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


def _show_step(line: str | None) -> None:
    """Show what the user must do: run this command, or something else if there is none."""
    here = this_distribution()
    if here.family == "nixos":
        show("On NixOS, start Tessera in a shell of nixpkgs' buildFHSEnv that has these and Python: its packages")
        show("are programs for other distributions.")
    elif line is None:
        show("No known package manager was found; install these with your system's own.")
    elif here.image_based:
        show(f"Install them with:\n    {line}\nand restart the computer and start again.")
        show("(Or start Tessera in a container that has them, such as those of distrobox.)")
    else:
        show(f"Install them with:\n    {_as_root(line)}\nand start again.")


def _provide_macos(*, compiler: bool) -> bool:
    if compiler and not shutil.which("clang++"):
        show("A compiler is missing. Install Apple's with:\n    xcode-select --install\nand start again.")
        return False
    return True


# Microsoft's compiler with the Windows SDK, as a command for any terminal of Windows 10 and 11.
_BUILD_TOOLS = (
    "winget install Microsoft.VisualStudio.2022.BuildTools --override "
    '"--passive --wait --add Microsoft.VisualStudio.Workload.VCTools --includeRecommended"'
)


def _provide_windows(*, compiler: bool) -> bool:
    if compiler and not _has_windows_compiler():
        show(f"A C++ compiler is missing. Install Microsoft's with:\n    {_BUILD_TOOLS}\nand start again.")
        return False
    return True


def _has_windows_compiler() -> bool:
    """Whether CMake finds a compiler: a program in the PATH, or Visual Studio's, which is in no PATH."""
    if os.environ.get("CXX") or any(shutil.which(name) for name in ("cl", "clang-cl", "clang++", "g++")):
        return True
    programs = os.environ.get("PROGRAMFILES(X86)", r"C:\Program Files (x86)")
    lister = os.path.join(programs, "Microsoft Visual Studio", "Installer", "vswhere.exe")
    try:
        command = [lister, "-products", "*", "-property", "installationPath"]
        done = subprocess.run(command, capture_output=True, text=True, errors="replace", check=False)
    except OSError:
        return False
    return any(
        glob.glob(os.path.join(glob.escape(path), "VC", "Tools", "MSVC", "*")) for path in done.stdout.splitlines()
    )
