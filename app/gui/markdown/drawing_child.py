"""Child process that draws an SVG image from standard input and writes it to standard output as PNG.

The image is model output: drawing it can take minutes or crash the process, so the window never draws it itself.
Only shapes, text and references within the image are drawn: nothing in it is loaded, linked or run.
"""

import os
import re
import sys
from xml.etree import ElementTree as ET

SVG = "http://www.w3.org/2000/svg"
XLINK = "http://www.w3.org/1999/xlink"
HREFS = ("href", f"{{{XLINK}}}href")
_DRAWN = re.compile(
    "svg|g|defs|title|desc|path|rect|circle|ellipse|line|polyline|polygon|text|tspan|linearGradient|radialGradient|"
    "stop|symbol|use|pattern|mask|clipPath|marker|style"
)
_FROM_OUTSIDE = re.compile(r"@|\\|url\s*+\(\s*+['\"]?+\s*+(?!#)", re.IGNORECASE)
_LARGEST = 2_000_000  # characters
_SIDE = 1200  # pixels of the longer side
_MEMORY_BYTES = 2 << 30  # includes the fonts and libraries of Qt


def harmless(text: str) -> bytes:
    """The image without everything that loads, links or runs. Raises: ValueError: it is not an SVG image."""
    if len(text) > _LARGEST or "<!ENTITY" in text.upper():
        raise ValueError("too large, or with entities")
    try:
        root = ET.fromstring(text)  # noqa: S314 - in a process of its own, and without entities
    except ET.ParseError as error:
        raise ValueError(str(error)) from None
    if root.tag == "svg":  # many models omit the namespace
        for element in root.iter():
            element.tag = f"{{{SVG}}}{element.tag}"
    if root.tag != f"{{{SVG}}}svg":
        raise ValueError("not an SVG image")
    _prune(root)
    ET.register_namespace("", SVG)
    ET.register_namespace("xlink", XLINK)  # Qt knows the attribute by this prefix
    return ET.tostring(root)


def _prune(element: ET.Element) -> None:
    for name, value in list(element.attrib.items()):
        leads_out = name in HREFS and not value.strip().startswith("#")
        if leads_out or _FROM_OUTSIDE.search(value) or name.lower().startswith("on"):
            del element.attrib[name]
    for child in list(element):
        name = str(child.tag).removeprefix(f"{{{SVG}}}")
        if not _DRAWN.fullmatch(name) or (name == "style" and _FROM_OUTSIDE.search("".join(child.itertext()))):
            element.remove(child)
        else:
            _prune(child)


def draw(text: str) -> bytes:
    """The image as PNG. Raises: ValueError: it cannot be drawn."""
    from PySide6.QtCore import QBuffer, QByteArray, QIODevice, QSize, Qt
    from PySide6.QtGui import QGuiApplication, QImage, QPainter
    from PySide6.QtSvg import QSvgRenderer

    app = QGuiApplication(sys.argv[:1])
    renderer = QSvgRenderer(QByteArray(harmless(text)))
    if not renderer.isValid():
        raise ValueError("not an SVG image")
    renderer.setAspectRatioMode(Qt.AspectRatioMode.KeepAspectRatio)
    size = renderer.defaultSize() if renderer.defaultSize().isValid() else QSize(_SIDE, _SIDE)
    size = size.expandedTo(QSize(1, 1)).scaled(QSize(_SIDE, _SIDE), Qt.AspectRatioMode.KeepAspectRatio)
    image = QImage(size.expandedTo(QSize(1, 1)), QImage.Format.Format_ARGB32)
    image.fill(Qt.GlobalColor.white)
    painter = QPainter(image)
    renderer.render(painter)
    painter.end()
    png = QByteArray()
    buffer = QBuffer(png)
    buffer.open(QIODevice.OpenModeFlag.WriteOnly)
    image.save(buffer, "PNG")  # type: ignore[call-overload]  # the stub wants bytes
    del app
    return bytes(png.data())


def main() -> None:
    """Draw the image of standard input. Writes nothing if it cannot be drawn."""
    os.environ["QT_QPA_PLATFORM"] = "offscreen"
    if sys.platform != "win32":
        import resource

        resource.setrlimit(resource.RLIMIT_AS, (_MEMORY_BYTES, _MEMORY_BYTES))
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    try:
        png = draw(sys.stdin.buffer.read().decode("utf-8", "replace"))
    except (ValueError, RecursionError):
        return
    sys.stdout.buffer.write(png)


if __name__ == "__main__":
    main()
