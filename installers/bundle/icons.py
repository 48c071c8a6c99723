"""The program's icon in the formats of Windows and macOS, rendered from one SVG.

    python -m installers.bundle.icons FOLDER

Writes tessera.png, tessera.ico and tessera.icns. Needs PySide6 but no display.
"""

import os
import struct
import sys
from pathlib import Path
from typing import Final

SVG: Final = Path(__file__).resolve().parents[2] / "assets" / "icons" / "tessera.svg"
# Windows uses the nearest of these sizes; 256 is written as 0. Source: the ICONDIRENTRY structure.
ICO_SIZES: Final = (16, 24, 32, 48, 64, 128, 256)
# PNG size by icon type. Source: the icns format as Apple's iconutil writes it.
ICNS_TYPES: Final = {"ic07": 128, "ic08": 256, "ic09": 512, "ic10": 1024, "ic11": 32, "ic12": 64}


def png(size: int) -> bytes:
    """The icon as a PNG of `size` by `size` pixels."""
    os.environ.setdefault("QT_QPA_PLATFORM", "offscreen")
    from PySide6.QtCore import QBuffer, QIODevice
    from PySide6.QtGui import QImage, QPainter
    from PySide6.QtSvg import QSvgRenderer
    from PySide6.QtWidgets import QApplication

    # The same class as the window's: a test run may have both in one process.
    application = QApplication.instance() or QApplication([])
    image = QImage(size, size, QImage.Format.Format_ARGB32)
    image.fill(0)
    painter = QPainter(image)
    QSvgRenderer(str(SVG)).render(painter)
    painter.end()
    buffer = QBuffer()
    buffer.open(QIODevice.OpenModeFlag.WriteOnly)
    image.save(buffer, "PNG")  # type: ignore[call-overload]  # the stub wants str, Qt takes both
    assert application is not None
    return bytes(buffer.data().data())


def ico() -> bytes:
    """An .ico file with all ICO_SIZES."""
    images = [(size, png(size)) for size in ICO_SIZES]
    head = struct.pack("<HHH", 0, 1, len(images))
    at = len(head) + 16 * len(images)
    rows = b""
    for size, data in images:
        rows += struct.pack("<BBBBHHII", size % 256, size % 256, 0, 0, 1, 32, len(data), at)
        at += len(data)
    return head + rows + b"".join(data for _, data in images)


def icns() -> bytes:
    """An .icns file with all ICNS_TYPES."""
    body = b""
    for kind, size in ICNS_TYPES.items():
        data = png(size)
        body += kind.encode() + struct.pack(">I", len(data) + 8) + data
    return b"icns" + struct.pack(">I", len(body) + 8) + body


def write(folder: Path) -> None:
    """Write the three icon files to a folder."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "tessera.png").write_bytes(png(512))
    (folder / "tessera.ico").write_bytes(ico())
    (folder / "tessera.icns").write_bytes(icns())


if __name__ == "__main__":
    write(Path(sys.argv[1]))
