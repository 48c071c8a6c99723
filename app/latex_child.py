"""Child process that renders LaTeX formulas: one request per line; the response is an SVG image or empty.

A formula is model output: a long or nested one takes seconds and can crash the process, so the window never
renders it in its own process. Source of the rendering times: docs/dev/window.md.
"""

import json
import sys

LONGEST = 2000  # characters; a longer formula is shown as text


def draw(latex: str, size: float, colour: str, *, display: bool) -> dict[str, object]:
    """Render a formula as SVG; return its width, its height and the distance from top to baseline in pixels."""
    from ziamath.config import config
    from ziamath.zmath import Latex

    config.svg2 = False  # Qt draws paths, but not references between them
    shown = Latex(latex, size=size, color=colour, inline=not display)
    width, height = shown.getsize()
    return {"svg": shown.svg(), "width": width, "height": height, "ascent": height + shown.getyofst()}


def main() -> None:
    """Answer requests until stdin ends."""
    for line in sys.stdin:
        request = json.loads(line)
        try:
            answer = draw(request["latex"], request["size"], request["colour"], display=request["display"])
        except Exception:  # noqa: BLE001 - a formula that fails stays text
            answer = {}
        sys.stdout.write(json.dumps({"key": request["key"], **answer}) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
