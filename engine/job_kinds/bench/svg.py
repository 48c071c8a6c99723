"""Plots results as SVG: speed over prompt length, one line per result."""

from collections.abc import Sequence
from xml.sax.saxutils import escape

from engine.placement.measurements import Report

WIDTH, HEIGHT, MARGIN = 760, 300, 64
# Distinct for colour-blind readers. Source: Okabe and Ito, "Color Universal Design", 2008.
COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9")


def draw(reports: Sequence[Report]) -> str:
    """The whole file. Reports without points are omitted."""
    shown = [r for r in reports if r.points]
    height = 2 * HEIGHT + 24 * len(shown) + 20
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{height}">',
        "<style>text{font:13px sans-serif}</style>",
        f'<rect width="{WIDTH}" height="{height}" fill="white"/>',
    ]
    decode = [[(p.length, p.decode_tok_s.median) for p in r.points] for r in shown]
    prefill = [[(p.length, p.prefill_tok_s.median) for p in r.points] for r in shown]
    parts += _chart(0, "decode, tok/s", decode) + _chart(HEIGHT, "prefill, tok/s", prefill)
    for i, report in enumerate(shown):
        y = 2 * HEIGHT + 24 * i + 14
        kind = ", stand-in" if report.stand_in else ""
        text = escape(f"{report.model} ({report.backend}, {report.threads} threads{kind})")
        parts.append(f'<rect x="{MARGIN}" y="{y - 9}" width="12" height="12" fill="{COLOURS[i % len(COLOURS)]}"/>')
        parts.append(f'<text x="{MARGIN + 20}" y="{y + 2}">{text}</text>')
    return "\n".join([*parts, "</svg>", ""])


def _chart(top: int, title: str, lines: Sequence[Sequence[tuple[int, float]]]) -> list[str]:
    """Axes from zero, with the measured lengths and the largest value marked."""
    points = [point for line in lines for point in line]
    if not points:
        return []
    longest, fastest = max(x for x, _ in points), max(y for _, y in points)
    right, bottom = WIDTH - MARGIN, top + HEIGHT - 40

    def at(x: float, y: float) -> tuple[float, float]:
        across = MARGIN + (right - MARGIN) * x / longest
        up = bottom - (bottom - top - 40) * (y / fastest if fastest > 0 else 0.0)
        return round(across, 1), round(up, 1)

    parts = [
        f'<text x="{MARGIN}" y="{top + 24}">{escape(title)}</text>',
        f'<path d="M{MARGIN},{top + 36}V{bottom}H{right}" fill="none" stroke="#888"/>',
        f'<text x="{MARGIN - 6}" y="{at(0, fastest)[1] + 4}" text-anchor="end">{fastest:.4g}</text>',
    ]
    for length in sorted({x for x, _ in points}):
        x, _ = at(length, 0)
        parts.append(f'<text x="{x}" y="{bottom + 18}" text-anchor="middle">{length}</text>')
    for i, line in enumerate(lines):
        colour = COLOURS[i % len(COLOURS)]
        path = " ".join(f"{x},{y}" for x, y in (at(*point) for point in line))
        parts.append(f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="2"/>')
        parts += [f'<circle cx="{x}" cy="{y}" r="3" fill="{colour}"/>' for x, y in (at(*p) for p in line)]
    return parts
