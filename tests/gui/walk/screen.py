"""An X server without a monitor, its window manager, and control of its mouse and keyboard."""

import os
import subprocess
import time

PROGRAMS = ("Xvfb", "openbox", "xdotool")
WAIT_S = float(os.environ.get("WALK_WAIT_S", "150"))  # for events that take a moment, on a busy computer
MANAGERS = 3  # about one in a hundred crashed at the start


class Screen:
    """An X server without a monitor, with a window manager."""

    def __init__(self, size="1280x800"):
        self.clicks = 0  # number of mouse button presses so far
        read, write = os.pipe()
        command = [
            "Xvfb",
            "-displayfd",
            str(write),
            "-screen",
            "0",
            f"{size}x24",
            "-nolisten",
            "tcp",
            "-dpi",
            "96",
            "-r",
        ]  # no key repeat
        self.server = subprocess.Popen(command, pass_fds=(write,), stderr=subprocess.DEVNULL)
        self.manager = None
        try:
            os.close(write)
            with os.fdopen(read) as told:
                self.display = f":{told.readline().strip()}"
            assert self.display != ":", f"the X server ended with {self.server.wait(WAIT_S)}"
            self.env = {**os.environ, "DISPLAY": self.display}
            self.start_manager()
        except BaseException:
            self.close()
            raise

    def start_manager(self):
        """A window that opens before its manager would not get the keyboard; a manager that dies is replaced."""
        started, ended = time.monotonic(), []
        while self.manager is None or not self.managed():
            if self.manager is None or self.manager.poll() is not None:
                if self.manager is not None:
                    ended.append(self.manager.returncode)
                assert len(ended) < MANAGERS, f"the window manager ended with {ended}"
                self.manager = subprocess.Popen(
                    ["openbox", "--sm-disable"], env=self.env, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
                )
            assert time.monotonic() - started < WAIT_S, "no window manager"
            time.sleep(0.05)

    def close(self):
        processes = [process for process in (self.manager, self.server) if process is not None]
        for process in processes:
            process.terminate()
        for process in processes:
            try:
                process.wait(WAIT_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()

    def managed(self):
        """Whether the window manager runs: without one there are no desktops."""
        asked = ["xdotool", "get_num_desktops"]
        done = subprocess.run(asked, env=self.env, capture_output=True, timeout=WAIT_S, check=False)
        return done.returncode == 0

    def hand(self, *arguments):
        """One movement, click or key."""
        self.clicks += arguments.count("click")
        subprocess.run(["xdotool", *map(str, arguments)], env=self.env, check=True, timeout=WAIT_S)
