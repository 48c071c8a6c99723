"""Draws formulas: a child process that reads one request a line and answers with a picture in SVG, or with nothing.

A formula is text of a model: a long or nested one takes seconds and may end the process, so it is never drawn in
the window's own. Source of the time it takes: docs/dev/window.md.
"""

import json
import sys

LONGEST = 2000  # letters of a formula; longer ones stay text


def draw(latex: str, size: float, colour: str, *, display: bool) -> dict[str, object]:
    """The picture: its SVG, width, height, and how far its baseline is below its top, in pixels."""
    from ziamath.config import config  # noqa: PLC0415 - only the child needs it
    from ziamath.zmath import Latex  # noqa: PLC0415

    config.svg2 = False  # Qt draws paths, not the references between them
    shown = Latex(latex, size=size, color=colour, inline=not display)
    width, height = shown.getsize()
    return {"svg": shown.svg(), "width": width, "height": height, "ascent": height + shown.getyofst()}


def main() -> None:
    """Answer until the input ends."""
    for line in sys.stdin:
        asked = json.loads(line)
        try:
            answer = draw(asked["latex"], asked["size"], asked["colour"], display=asked["display"])
        except Exception:  # noqa: BLE001 - whatever a formula does to its reader, it stays text
            answer = {}
        sys.stdout.write(json.dumps({"key": asked["key"], **answer}) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
