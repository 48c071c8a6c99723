"""One window a user: a second start raises the first and hands over its file."""

import getpass
import hashlib
import json

from PySide6.QtCore import QLockFile, QObject, Signal
from PySide6.QtNetwork import QLocalServer, QLocalSocket

from engine.core.paths import user_paths

_WAIT_MS = 1000
_MOST_BYTES = 1 << 16


class SingleInstance(QObject):
    """`claim` says whether this process is the first; `opened` brings the files of later ones."""

    opened = Signal(list)

    def __init__(self, parent: QObject | None = None) -> None:
        super().__init__(parent)
        state = user_paths().state
        identity = f"{getpass.getuser()}:{state}"
        self._name = f"tessera-{hashlib.sha256(identity.encode()).hexdigest()[:16]}"
        self._state = state
        self._lock: QLockFile | None = None
        self._server: QLocalServer | None = None

    def claim(self, files: list[str]) -> bool:
        """Be the window, or hand `files` to the one there is and return False."""
        if self._hand_over(files):
            return False
        try:
            self._state.mkdir(parents=True, exist_ok=True)
            self._lock = QLockFile(str(self._state / "window.lock"))
            if not self._lock.tryLock(0) and self._hand_over(files):
                return False
        except OSError:
            self._lock = None  # a home that cannot be written: nothing to share it with
        QLocalServer.removeServer(self._name)  # left by a process that was killed
        self._server = QLocalServer(self)
        self._server.setSocketOptions(QLocalServer.SocketOption.UserAccessOption)
        self._server.newConnection.connect(self._on_connection)
        self._server.listen(self._name)
        return True

    def release(self) -> None:
        """Let another process be the window."""
        if self._server is not None:
            self._server.close()
        if self._lock is not None:
            self._lock.unlock()

    def _hand_over(self, files: list[str]) -> bool:
        socket = QLocalSocket()
        socket.connectToServer(self._name)
        if not socket.waitForConnected(_WAIT_MS):
            return False
        socket.write(json.dumps(files).encode() + b"\n")
        socket.waitForBytesWritten(_WAIT_MS)
        socket.disconnectFromServer()
        return True

    def _on_connection(self) -> None:
        assert self._server is not None
        socket = self._server.nextPendingConnection()

        def read() -> None:
            if not socket.canReadLine() and socket.bytesAvailable() < _MOST_BYTES:
                return
            try:
                files = json.loads(bytes(socket.readLine(_MOST_BYTES).data()))
            except (ValueError, RecursionError):
                files = []
            self.opened.emit([name for name in files if isinstance(name, str)] if isinstance(files, list) else [])
            socket.disconnectFromServer()

        socket.readyRead.connect(read)
        socket.disconnected.connect(socket.deleteLater)
