"""A real headless Chromium, controlled over its DevTools protocol; and a connection that can drop."""

import base64
import contextlib
import itertools
import json
import os
import shutil
import socket
import subprocess
import threading
import time
from pathlib import Path


def chromium() -> str | None:
    return next(
        (found for name in ("chromium", "chromium-browser", "google-chrome") if (found := shutil.which(name))), None
    )


class Browser:
    """One page of 390x844 points, the size of a phone."""

    def __init__(self, profile: Path) -> None:
        to_read, self._write = os.pipe()
        self._read, to_write = os.pipe()
        script = f'exec 3<&{to_read} 4>&{to_write}; exec "$@"'
        self.process = subprocess.Popen(
            ["bash", "-c", script, "-", chromium(), "--headless=new", "--no-sandbox", "--disable-gpu",
             "--remote-debugging-pipe", "--disable-dev-shm-usage", "--no-first-run",
             "--disable-background-networking",
             "--disable-component-update", f"--user-data-dir={profile}", "about:blank"],
            pass_fds=(to_read, to_write), stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )  # fmt: skip
        os.close(to_read)
        os.close(to_write)
        self._ids, self._rest = itertools.count(1), b""
        self.errors: list[str] = []
        self._session = None
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log"):
            self.call(f"{domain}.enable")
        self.call("Emulation.setDeviceMetricsOverride", width=390, height=844, deviceScaleFactor=2, mobile=True)
        self.call("Emulation.setTouchEmulationEnabled", enabled=True)

    def call(self, method: str, **params):
        """Send one command and return its result."""
        number = next(self._ids)
        message = {"id": number, "method": method, "params": params}
        if self._session:
            message["sessionId"] = self._session
        os.write(self._write, json.dumps(message).encode() + b"\0")
        while True:
            told = self._next()
            if told.get("id") == number:
                assert "error" not in told, told
                return told["result"]

    def _next(self):
        while b"\0" not in self._rest:
            piece = os.read(self._read, 1 << 16)
            assert piece, "the browser ended"
            self._rest += piece
        raw, _, self._rest = self._rest.partition(b"\0")
        told = json.loads(raw)
        if told.get("method") == "Runtime.exceptionThrown":
            self.errors.append(json.dumps(told["params"])[:500])
        return told

    def open(self, url: str) -> None:
        self.call("Page.navigate", url=url)
        there = f"location.href.startsWith({url.partition('#')[0]!r})"
        self.until(f"document.readyState === 'complete' && {there}")

    def js(self, expression: str):
        """Evaluate a JavaScript expression and return its value."""
        done = self.call(
            "Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True, userGesture=True
        )
        assert "exceptionDetails" not in done, done["exceptionDetails"]
        return done["result"].get("value")

    def until(self, expression: str, seconds: float = 60) -> None:
        """Wait until a JavaScript expression is true."""
        end = time.monotonic() + seconds
        while not self.js(expression):
            assert time.monotonic() < end, (
                f"{expression} did not come true; the page says {self.js('document.body.innerText')}"
            )
            time.sleep(0.05)

    def type(self, text: str) -> None:
        self.call("Input.insertText", text=text)

    def press(self, key: str, code: int) -> None:
        for kind in ("rawKeyDown", "char", "keyUp"):
            more = {"text": "\r"} if kind == "char" and key == "Enter" else {}
            if kind != "char" or more:
                self.call(
                    "Input.dispatchKeyEvent", type=kind, key=key, code=key, windowsVirtualKeyCode=code, **more
                )

    def tap(self, selector: str) -> None:
        """Tap the center of an element."""
        self.js(f"document.querySelector({selector!r}).scrollIntoView({{block: 'center'}})")
        box = self.js(f"JSON.stringify(document.querySelector({selector!r}).getBoundingClientRect())")
        box = json.loads(box)
        point = {"x": box["x"] + box["width"] / 2, "y": box["y"] + box["height"] / 2}
        self.call("Input.dispatchTouchEvent", type="touchStart", touchPoints=[point])
        self.call("Input.dispatchTouchEvent", type="touchEnd", touchPoints=[])

    def picture(self, path: Path) -> None:
        path.write_bytes(base64.b64decode(self.call("Page.captureScreenshot")["data"]))

    def close(self) -> None:
        self._session = None
        with contextlib.suppress(OSError, AssertionError):
            self.call("Browser.close")
        try:
            self.process.wait(10)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        os.close(self._read)
        os.close(self._write)


class Link:
    """A proxy to a server: `drop` ends all connections and accepts no new ones until `mend`."""

    def __init__(self, port: int) -> None:
        self._port, self._open, self.up = port, set(), True
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._listener.getsockname()[1]}"
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self):
        while True:
            try:
                near, _ = self._listener.accept()
            except OSError:
                return
            if not self.up:
                near.close()
                continue
            far = socket.create_connection(("127.0.0.1", self._port))
            self._open |= {near, far}
            for a, b in ((near, far), (far, near)):
                threading.Thread(target=self._pump, args=(a, b), daemon=True).start()

    @staticmethod
    def _pump(source, target):
        with source, contextlib.suppress(OSError):
            while data := source.recv(1 << 16):
                target.sendall(data)
        with contextlib.suppress(OSError):
            target.shutdown(socket.SHUT_RDWR)

    def drop(self):
        self.up = False
        for end in self._open:
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
        self._open.clear()

    def mend(self):
        self.up = True

    def close(self):
        self.drop()
        self._listener.close()
