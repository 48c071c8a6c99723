"""Opt-in: installs, uses and removes a .deb or .run in a clean Debian root without compiler and network.

    sudo python tests/optin/installers/clean_root.py FILE [--suite NAME] [--pack FILE | --brings-pack]

Needs root, mmdebstrap, dpkg-deb, unshare and Debian's packages. Prints one line per step and exits with 1 at the
first failure. `--pack` installs a Vulkan kernel pack, and Mesa's software driver in the root to run it on;
`--brings-pack` tests the one in the package; with both, the one in the package and then the one installed over it.
"""

import argparse
import os
import shutil
import sqlite3
import subprocess
import sys
import tempfile
import time
from contextlib import closing
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
sys.path.insert(0, str(ROOT))

from installers.linux.packages import DEPENDS

# Packages that every desktop has; the package's own requirements come from its control file. There is no compiler.
DESKTOP = ("xvfb", "openbox", "xdotool", "x11-utils", "procps")
DRIVER = ("mesa-vulkan-drivers", "libvulkan1")
# Mesa's software driver compiles every shader at its first use.
LONG_S = 2400
LINE = 120
# The lock of a killed server names a process id that may have been reused.
SCREEN = (
    "rm -f /tmp/.X7-lock /tmp/.X11-unix/X7; Xvfb :7 -screen 0 1280x800x24 >/dev/null 2>&1 & export DISPLAY=:7; "
    "until xdotool getdisplaygeometry >/dev/null 2>&1; do sleep .5; done; openbox >/dev/null 2>&1 & sleep 2"
)
QUESTION = "What is a token?"
ANSWER = "piece of a word"
CHATS = "/root/.local/state/tessera/chats.db"
# The start of a server is awaited: its duration is not measured here.
UP = "for i in $(seq 90); do (exec 3<>/dev/tcp/127.0.0.1/7373) 2>/dev/null && break; sleep 1; done"
HEALTH = (
    f"{UP}; exec 3<>/dev/tcp/127.0.0.1/7373; "
    "printf 'GET /health HTTP/1.0\\r\\nHost: 127.0.0.1\\r\\n\\r\\n' >&3; cat <&3"
)


class Root:
    """A Debian system below `folder`; its commands have no network unless requested."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def run(self, script: str, *, online: bool = False, limit_s: float = 600) -> str:
        inside = f"chroot {self.folder} /usr/bin/env -i {ENVIRONMENT} bash -ec {_quoted(script)}"
        offline = ["unshare", "--net", "--pid", "--fork", "--kill-child", "bash", "-c"]
        command = ["bash", "-c", inside] if online else [*offline, f"ip link set lo up; {inside}"]
        done = subprocess.run(command, capture_output=True, text=True, timeout=limit_s, check=False)
        if done.returncode != 0:
            raise RuntimeError(
                f"{script}\nended with {done.returncode}\n{done.stdout[-3000:]}{done.stderr[-3000:]}"
            )
        return done.stdout + done.stderr

    def mounted(self) -> None:
        for kind in ("proc", "sysfs"):
            target = self.folder / {"proc": "proc", "sysfs": "sys"}[kind]
            subprocess.run(["mount", "-t", kind, kind, str(target)], check=True)
        subprocess.run(["mount", "--bind", "/dev", str(self.folder / "dev")], check=True)

    def gone(self) -> None:
        for name in ("dev", "sys", "proc"):
            subprocess.run(["umount", "-l", str(self.folder / name)], check=False, capture_output=True)
        shutil.rmtree(self.folder, ignore_errors=True)


# ggml hides Vulkan devices of type CPU, such as Mesa's, unless they are named.
ENVIRONMENT = (
    "PATH=/usr/sbin:/usr/bin:/sbin:/bin HOME=/root LANG=C.UTF-8 DEBIAN_FRONTEND=noninteractive "
    "GGML_VK_VISIBLE_DEVICES=0"
)


def _double_quoted(text: str) -> str:
    return f'"{text}"'


def _quoted(text: str) -> str:
    return "'" + text.replace("'", "'\\''") + "'"


def mirror() -> str:
    """The address from which this machine gets Debian's packages."""
    listed = ["apt-get", "indextargets", "--format", "$(REPO_URI)", "Created-By: Packages"]
    known = subprocess.run(listed, capture_output=True, text=True, check=True).stdout.split()
    return next(address for address in known if address.rstrip("/").endswith("/debian"))


def archive(suite: str, work: Path) -> Path:
    """A minimal system as a tar, made once below `work`."""
    target = work / f"{suite}.tar"
    if not target.exists():
        partial = target.with_name(f"partial-{target.name}")
        subprocess.run(["mmdebstrap", "--variant=minbase", suite, str(partial), mirror()], check=True)
        partial.replace(target)
    return target


def older(deb: Path, work: Path) -> Path:
    """The same package with an earlier version: the start of an upgrade."""
    folder, target = work / "older", work / "older.deb"
    shutil.rmtree(folder, ignore_errors=True)
    subprocess.run(["dpkg-deb", "-R", str(deb), str(folder)], check=True)
    control = folder / "DEBIAN" / "control"
    text = control.read_text()
    version = next(line for line in text.splitlines() if line.startswith("Version:"))
    control.write_text(text.replace(version, "Version: 0.0.1"))
    (folder / "usr/lib/tessera/_internal/gone_in_the_next_version").write_text("x")
    subprocess.run(["dpkg-deb", "-Znone", "--root-owner-group", "-b", str(folder), str(target)], check=True)
    shutil.rmtree(folder)
    return target


def dependencies(root: Root, driver: tuple[str, ...] = ()) -> None:
    """The package's requirements, and a minimal desktop; the only step with a network."""
    names = [part.split("(")[0].strip() for part in DEPENDS]
    alternatives = " ".join(f"$(first {name.replace('|', ' ')})" for name in names)
    first = 'first() { for n in "$@"; do apt-cache show "$n" >/dev/null 2>&1 && { echo "$n"; return; }; done; }; '
    wanted = f"{alternatives} {' '.join((*DESKTOP, *driver))}"
    root.run(
        f"{first}apt-get update -q; apt-get install -y -q --no-install-recommends {wanted}",
        online=True,
        limit_s=1800,
    )
    found = root.run("which gcc cc g++ clang || echo none").strip()
    tell("dependencies", f"installed; compilers: {found}; {root.run('ldd --version | head -1').strip()}")


def steps_of_run(root: Root, file: Path) -> None:
    """The self-extracting file as an ordinary user installs it. Raises: RuntimeError, AssertionError."""
    dependencies(root)
    root.run("useradd -m person")
    shutil.copy(file, root.folder / "tessera.run")

    def person(script: str, limit_s: float = 600) -> str:
        script = f"export HOME=/home/person PATH=/home/person/.local/bin:$PATH; {script}"
        return root.run(f"su person -s /bin/bash -c {_quoted(script)}", limit_s=limit_s)

    said = person("sh /tessera.run || echo ended with $?")
    if "ended with 3" in said:
        tell("without xz", next(line for line in said.splitlines() if "xz" in line))
        root.run("apt-get install -y -q --no-install-recommends xz-utils", online=True)
        said = person("sh /tessera.run")
    assert "Done:" in said, said
    tell("install by a user, without network", person("tessera --version").strip())
    answer = person(f'tessera chat spark --prompt "{QUESTION}"')
    assert ANSWER in answer, answer
    tell("answer", answer.strip().splitlines()[0])
    tell("doctor", kernels_of(person("tessera doctor")))
    told = person(f"tessera serve & {HEALTH}; kill %1; wait")
    assert "200 OK" in told, told
    tell("server", "200 on /health")
    person("mkdir -p ~/.local/share/tessera/models; echo keep > ~/.local/share/tessera/models/mine.txt")
    person("sh /tessera.run")
    tell("installed again over itself", person("tessera --version").strip())
    tell("window", window(root, "/home/person/.local/bin/tessera"))
    person("sh /tessera.run --remove")
    left = person("find ~/.local -path '*tessera*' -not -path '*/share/tessera*' -not -path '*/state/*'").strip()
    assert not left, left
    assert person("cat ~/.local/share/tessera/models/mine.txt").strip() == "keep"
    tell("removal", "nothing left of the program; models kept")


def kernels_of(doctor: str) -> str:
    """The lines with the variant of the CPU's library and the GPUs; the output may be wrapped."""
    found = " ".join(doctor.partition("Kernels:")[2].split("\n\n")[0].split())[:LINE]
    assert "cpu" in found, doctor
    return f"Kernels: {found}"


def steps(root: Root, deb: Path, pack: Path | None, work: Path, *, brought: bool) -> None:
    """Every step, each with its expected result. Raises: RuntimeError, AssertionError."""
    vulkan = brought or pack is not None
    dependencies(root, DRIVER if vulkan else ())
    shutil.copy(older(deb, work), root.folder / "older.deb")
    shutil.copy(deb, root.folder / "tessera.deb")
    root.run("dpkg -i /older.deb")
    tell("install without network", root.run("tessera --version").strip())
    answer = root.run(f'tessera chat spark --prompt "{QUESTION}"')
    assert ANSWER in answer, answer
    tell("answer", answer.strip().splitlines()[0])
    told = root.run(f"tessera serve & {HEALTH}; kill %1; wait")
    assert "200 OK" in told, told
    tell("server", "200 on /health")
    root.run("mkdir -p /root/.local/share/tessera/models; echo keep > /root/.local/share/tessera/models/mine.txt")
    kept = chat_in_window(root)
    tell("chat in the window", f"typed, answered, kept: {kept}")
    root.run("dpkg -i /tessera.deb")
    left = root.run("ls /usr/lib/tessera/_internal/gone_in_the_next_version 2>/dev/null || true").strip()
    assert not left, "a file of the earlier version stayed"
    assert root.run("cat /root/.local/share/tessera/models/mine.txt").strip() == "keep"
    assert chats_with(root, ANSWER) == kept
    version = root.run("tessera --version").strip()
    tell("upgrade", f"{version}; models and the chat of the earlier version are there")
    tell("doctor", kernels_of(root.run("tessera doctor")))
    tell("window", window(root))
    if vulkan:
        on_vulkan(root, pack, brought=brought)
    root.run("dpkg -r tessera")
    left = root.run("find /usr -path '*tessera*' -not -path '/usr/share/doc/*' | head").strip()
    assert not left, left
    assert root.run("cat /root/.local/share/tessera/models/mine.txt").strip() == "keep"
    assert chats_with(root, ANSWER) == kept
    tell("removal", "nothing left below /usr; models and chats kept")


def on_vulkan(root: Root, pack: Path | None, *, brought: bool) -> None:
    """Detect the GPU with the `brought` or installed pack, compare its results, generate on it."""
    root.run("useradd -m person")  # what root can read others must be able to
    before = kernels_of(root.run("su person -c '/usr/bin/tessera doctor'"))
    assert brought == ("Vulkan0" in before), before
    if pack is not None:
        shutil.copy(pack, root.folder / "pack.tar.xz")
        tell("kernel pack", root.run("tessera kernels install /pack.tar.xz").strip().splitlines()[-1])
    seen = kernels_of(root.run("tessera doctor"))
    assert "Vulkan0" in seen, seen
    tell("doctor with the pack", seen)
    checked = root.run("tessera verify-device spark", limit_s=LONG_S)
    assert "wrong" not in checked, checked
    assert "failed" not in checked, checked
    tell("device check", checked.strip().splitlines()[-1])
    ask = f'tessera serve --device vulkan & {UP}; sleep 5; tessera chat spark --prompt "{QUESTION}"; '
    answer = root.run(f"{ask} tessera models loaded --json; kill %1; wait", limit_s=LONG_S)
    assert ANSWER in answer, answer
    assert "Vulkan0" in answer, answer
    tell("answer on Vulkan", answer.strip().splitlines()[0])


def chat_in_window(root: Root) -> int:
    """Type the question into the window like a user; return the number of stored answers."""
    script = f"""
        {SCREEN}
        tessera window >/tmp/window.log 2>&1 & p=$!
        xdotool search --sync --onlyvisible --name Tessera >/dev/null
        for i in $(seq 60); do
          sleep 5; grep -aq {_double_quoted(ANSWER)} {CHATS}* && break
          [ $((i % 6)) = 3 ] || continue
          xdotool key ctrl+a; xdotool type --delay 20 {_double_quoted(QUESTION)}; xdotool key Return
        done
        kill $p; wait $p || true; kill %1 %2 || true; cat /tmp/window.log"""
    said = root.run(script, limit_s=600)
    found = chats_with(root, ANSWER)
    assert found, f"no answer was kept; the window said: {said}"
    return found


def chats_with(root: Root, words: str) -> int:
    """The number of stored messages with this text; read by SQLite, so a damaged file is an error."""
    with closing(sqlite3.connect(f"file:{root.folder}{CHATS}?mode=ro", uri=True)) as connection:
        assert connection.execute("pragma integrity_check").fetchone() == ("ok",)
        return int(
            connection.execute("select count(*) from messages where content like ?", (f"%{words}%",)).fetchone()[0]
        )


def window(root: Root, command: str = "tessera") -> str:
    """Start the window twice under Xvfb with a window manager; seconds until it is mapped, cold and warm."""
    script = """
        SCREEN
        for i in 1 2; do
          s=$(date +%s%N); COMMAND window >/tmp/window.log 2>&1 & p=$!
          xdotool search --sync --onlyvisible --name Tessera >/dev/null; e=$(date +%s%N)
          echo $(( (e - s) / 1000000 )); sleep 3; kill $p; wait $p || true
        done
        cat /tmp/window.log >&2; kill %1 %2 || true"""
    found = [
        line
        for line in root.run(script.replace("SCREEN", SCREEN).replace("COMMAND", command), limit_s=180).splitlines()
        if line.strip().isdigit()
    ]
    assert len(found) == 2, found
    return f"cold {found[0]} ms, warm {found[1]} ms"


def tell(step: str, seen: str) -> None:
    print(f"{step}: {seen}", flush=True)


def main() -> int:
    """Run every step in a fresh root."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file", type=Path)
    parser.add_argument("--suite", default="bookworm")
    parser.add_argument("--work", type=Path, default=Path("build/clean_root"))
    parser.add_argument("--pack", type=Path)
    parser.add_argument("--brings-pack", action="store_true")
    options = parser.parse_args()
    if os.geteuid() != 0:
        parser.error("a root folder is made by root only")
    options.work.mkdir(parents=True, exist_ok=True)
    root = Root(Path(tempfile.mkdtemp(prefix="root-", dir=options.work)).resolve())
    started = time.monotonic()
    try:
        subprocess.run(
            ["tar", "-xf", str(archive(options.suite, options.work)), "-C", str(root.folder)], check=True
        )
        root.folder.chmod(0o755)
        root.mounted()
        if options.file.suffix == ".run":
            steps_of_run(root, options.file)
        else:
            steps(root, options.file, options.pack, options.work, brought=options.brings_pack)
    except (RuntimeError, AssertionError, subprocess.SubprocessError) as error:
        tell("FAILED", str(error))
        return 1
    finally:
        root.gone()
    tell("all", f"{options.suite}, {time.monotonic() - started:.0f} s")
    return 0


if __name__ == "__main__":
    sys.exit(main())
