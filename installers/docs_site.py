"""Build the documentation site: `python3 installers/docs_site.py [FOLDER]`, default build/site.

Creates an environment with the locked tools on first use. mkdocs uses this file as a hook: the front page is
README.md. `python installers/docs_site.py --pages`, in the program's own environment, writes the generated pages:
the command line from Click, settings and environment variables from their tables, troubleshooting from the texts of
`tessera doctor` and the table of errors.
"""

import datetime as dt
import importlib
import json
import os
import re
import subprocess
import sys
import venv
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from xml.sax.saxutils import escape

if TYPE_CHECKING:
    from devices.types import System

ROOT: Final = Path(__file__).resolve().parents[1]
REPOSITORY_ONLY: Final = re.compile(r"\]\((?!docs/|https?:|#)([^)]+)\)")
SHIM: Final = "iframe-worker-1.0.4.js"
_SYSTEMS: "Final[tuple[tuple[System, str], ...]]" = (("linux", "Linux"), ("windows", "Windows"), ("macos", "macOS"))
_BACKENDS: Final = (
    ("vulkan", "Vulkan (AMD, Intel, NVIDIA)"), ("cuda", "CUDA (NVIDIA)"), ("rocm", "ROCm (AMD)"),
    ("sycl", "SYCL (Intel)"), ("opencl", "OpenCL (Qualcomm)"), ("openvino", "OpenVINO (Intel)"), ("metal", "Metal"),
    ("cpu", "CPU"),
)  # fmt: skip


def front_page() -> str:
    """README.md with links adapted to the docs folder."""
    text = (ROOT / "README.md").read_text(encoding="utf-8").replace("](docs/", "](")
    return REPOSITORY_ONLY.sub(lambda match: match[0] if (ROOT / "docs" / match[1]).exists() else "]", text)


def command_page() -> str:
    """docs/cli.md: every command with its options, from Click."""
    sys.path.insert(0, str(ROOT))
    import click

    from app.cli.main import cli

    def section(command: click.Command, path: str, depth: int) -> list[str]:
        context = click.Context(command, info_name=path.rsplit(maxsplit=1)[-1], show_default=True)
        help_text = " ".join((command.help or "").split("\f")[0].split())
        usage = " ".join(command.collect_usage_pieces(context))
        lines = [f"{'#' * depth} {path}", "", help_text.replace("<", "&lt;"), "", f"`{path} {usage}`", ""]
        records = [record for each in command.params if (record := each.get_help_record(context))]
        rows = [record for record in records if record[1]]  # the line above names the arguments already
        if rows:
            cells = [
                [" ".join(cell.split()).replace("|", "\\|").replace("<", "&lt;") for cell in row] for row in rows
            ]
            lines += ["| Option | Meaning |", "|---|---|", *(f"| `{name}` | {text} |" for name, text in cells), ""]
        if isinstance(command, click.Group):
            for name in command.list_commands(context):
                inner = command.get_command(context, name)
                if inner is not None and not inner.hidden:
                    lines += section(inner, f"{path} {name}", min(depth + 1, 3))
        return lines

    start = [
        "# Command line",
        "",
        "Generated. `--json` is for programs; `-h` works everywhere. See [exit codes](terminal.md#exit-codes).",
        "",
    ]
    root = click.Context(cli, info_name="tessera")
    for name in cli.list_commands(root):
        command = cli.get_command(root, name)
        if command is not None and not command.hidden:
            start += section(command, f"tessera {name}", 2)
    return "\n".join(start).rstrip() + "\n"


# Environment variables that are not settings: name and meaning.
VARIABLES: Final = (
    ("TESSERA_HOME", "the folder for settings, models, chats, cache and logs; relative to the current folder"),
    ("TESSERA_API_KEY", "the key that clients of `tessera serve` must send"),
    ("TESSERA_SERVER", "the address of the server that the terminal and the window use"),
    ("TESSERA_KEY", "the key that they send to the server in `TESSERA_SERVER`"),
    (
        "TESSERA_ENGINE_VERSION",
        "the installed version of llama.cpp for one start; `shipped` is the included one",
    ),
    ("TESSERA_ONNX_PYTHON", "the Python that runs ONNX models, for vendors' builds of ONNX Runtime"),
    ("TESSERA_QUARK_PYTHON", "the Python with AMD Quark, for `tessera onnx`"),
    ("HF_ENDPOINT", "another hub with Hugging Face's API"),
    ("HF_TOKEN", "the token for gated repositories"),
    ("HF_HUB_OFFLINE", "1: no request to the hub"),
    ("HTTPS_PROXY, NO_PROXY", "the proxy for downloads, as usual"),
)


def settings_page() -> str:
    """docs/settings.md: every setting with its variable, values and default, and the other variables."""
    sys.path.insert(0, str(ROOT))
    from app.setting import plain_number
    from app.settings import SETTINGS

    lines = [
        "# Settings and environment variables",
        "",
        "Generated from the program. The Settings page, `tessera settings set NAME VALUE` and the file that",
        "`tessera settings path` prints hold the same settings. An environment variable comes before the file.",
        "",
        "| Setting | Variable | Values | Default | Meaning |",
        "|---|---|---|---|---|",
    ]
    for each in SETTINGS:
        low, high = ("" if bound is None else plain_number(bound) for bound in (each.minimum, each.maximum))
        bounds = f"{low or 'any'} to {high or 'any'}" if low or high else ""
        kind = {bool: "true, false", str: "text"}.get(each.kind, f"number{f', {bounds}' if bounds else ''}")
        values = ", ".join(each.choices) or kind
        default = str(each.default).lower() if each.kind is bool else str(each.default) or "empty"
        meaning = f"{each.title}. {each.description}".replace("|", "\\|")
        lines.append(f"| `{each.name}` | `{each.environment}` | {values} | {default} | {meaning} |")
    lines += ["", "## Other environment variables", "", "| Variable | Meaning |", "|---|---|"]
    lines += [f"| `{name}` | {meaning} |" for name, meaning in VARIABLES]
    return "\n".join(lines) + "\n"


def errors_table() -> list[str]:
    """Each error code of the HTTP API: status, meaning, and whether a retry can help."""
    from engine.server.errors import STATUS

    rows = {}
    for kind in STATUS:
        code = getattr(kind, "code", "")
        if code and kind.__doc__:
            status, _, again = STATUS[kind]
            rows[code] = (status, " ".join(kind.__doc__.split("\n\n")[0].split()), again)
    lines = ["## Errors of the API", "", "| Status | `code` | Meaning | Retry |", "|---|---|---|---|"]
    for code, (status, meaning, again) in sorted(rows.items(), key=lambda row: (row[1][0], row[0])):
        lines.append(f"| {status} | `{code}` | {meaning} | {'can help' if again else 'no'} |")
    return [*lines, ""]


def remedies_page() -> str:
    """docs/troubleshooting.md: API errors, and the steps for backends that do not run, by system."""
    sys.path.insert(0, str(ROOT))
    from devices.install_hints import missing_backend, no_device

    lines = [
        "# Troubleshooting",
        "",
        "`tessera doctor` checks this computer and prints each problem with the step that helps.",
        "`tessera doctor --json` is for programs, and for bug reports.",
        "",
        *(ROOT / "docs" / "dev" / "troubleshooting.md.in").read_text(encoding="utf-8").splitlines(),
        "",
        *errors_table(),
    ]
    for system, name in _SYSTEMS:
        lines += [
            f"## {name}",
            "",
            "| Backend | Its library is missing | It loads, but finds no device |",
            "|---|---|---|",
        ]
        for backend, title in _BACKENDS:
            if (backend == "metal") != (system == "macos") and backend != "cpu":
                continue
            missing = missing_backend(backend, system, "x86_64", frozen=False)
            lines.append(f"| {title} | {missing} | {no_device(backend, system) or ''} |".replace("|| ", "\\|\\| "))
        lines.append("")
    return "\n".join(lines) + "\n"


def on_files(files: Any, config: Any) -> Any:
    """Hook of mkdocs: add the front page and the search shim."""
    files_of = importlib.import_module("mkdocs.structure.files").File  # only installed in mkdocs' own environment
    files.append(files_of.generated(config, "index.md", content=front_page()))
    for name in (SHIM, "iframe-worker-LICENSE"):
        text = (ROOT / "installers" / "site" / name).read_text(encoding="utf-8")
        files.append(files_of.generated(config, f"assets/{name}", content=text))
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Hook of mkdocs: turn links to files outside of docs into plain text."""
    folder = (ROOT / "docs" / page.file.src_uri).parent

    def kept(match: re.Match[str]) -> str:
        target = (folder / match[1].split("#")[0]).resolve()
        return match[0] if target.is_relative_to(ROOT / "docs") else "]"

    return re.sub(r"\]\((\.\./[^)]+)\)", kept, markdown)


def on_post_page(output: str, page: Any, config: Any) -> str:
    """Hook of mkdocs: load the search shim from the site itself, so that search works without a network."""
    del config
    up = "../" * page.file.dest_uri.count("/")
    return re.sub(r"https://[^\"' ]*iframe-worker[^\"' ]*", f"{up}assets/{SHIM}", output)


def benchmarks_page() -> str:
    """docs/benchmarks.md: the newest figure of each measurement, from tests/bench/results."""
    sys.path.insert(0, str(ROOT))
    from tests.bench.recording import FOLDER, newest

    lines = [
        "# Benchmarks",
        "",
        "Generated from the results that the scripts in `tests/bench` record. *Shape* means random weights in the",
        "dimensions of such a model. Each ratio compares both programs in one run on the same machine.",
        "",
        "![All recorded figures over time, one panel per metric](benchmarks.svg)",
        "",
        "The plot shows every recorded figure; each colour is one row of the table for that metric.",
        "",
    ]
    by_metric: dict[str, dict[tuple[str, ...], list[dict[str, Any]]]] = {}
    for line in newest():
        kind = (line["command"], *line["parameters"])
        by_metric.setdefault(line["metric"], {}).setdefault(kind, []).append(line)
    for metric, by_kind in by_metric.items():
        lines += [f"## {metric[:1].upper()}{metric[1:]}", ""]
        for (command, *names), of_kind in by_kind.items():
            lines += [*_table_of_figures(names, of_kind), ""]
            machines = dict.fromkeys(line["machine"] for line in of_kind)
            lines += [f"Machine: {'; '.join(machines)}. Script: `{command}`.", ""]
    lines.append("#" + (FOLDER / "six_models.md").read_text("utf-8"))
    return "\n".join(lines).rstrip() + "\n"


def _table_of_figures(names: Sequence[str], figures: Sequence[dict[str, Any]]) -> list[str]:
    """Figures of one metric and script with the same parameters, one row each."""
    notes = ["Note"] if any("note" in figure for figure in figures) else []
    heads = [*(name.replace("_", " ").capitalize() for name in names), "Value", "Runs", "Date, commit", *notes]
    rows = [f"| {' | '.join(heads)} |", "|---" * len(heads) + "|"]
    for figure in figures:
        earlier = f" (before: {figure['earlier']:g})" if "earlier" in figure else ""
        cells = [str(figure["parameters"][name]) for name in names]
        cells += [f"{figure['value']:g} {figure['unit']}".strip() + earlier, str(figure["n"])]
        cells += [f"{figure['date']}, {figure['commit']}", *(figure.get("note", "") for _ in notes)]
        rows.append(f"| {' | '.join(cells)} |")
    return rows


# One panel of the plot, in pixels.
_PANEL: Final = (300, 190)
_COLOURS: Final = ("#1f6feb", "#d1242f", "#1a7f37", "#9a6700", "#8250df", "#bf3989", "#57606a", "#0a7ea4")


def benchmarks_plot() -> str:
    """docs/benchmarks.svg: one panel per metric, all recorded figures over time, one line per measurement."""
    sys.path.insert(0, str(ROOT))
    from tests.bench.recording import results

    metrics: dict[str, dict[str, list[tuple[int, float]]]] = {}
    units: dict[str, str] = {}
    for line in results():
        series = ", ".join(str(value) for value in line["parameters"].values())
        day = dt.date.fromisoformat(line["date"]).toordinal()
        metrics.setdefault(line["metric"], {}).setdefault(series, []).append((day, line["value"]))
        units[line["metric"]] = line["unit"]
    days = [day for lines in metrics.values() for points in lines.values() for day, _ in points]
    first, last = min(days), max(days)
    width, height = _PANEL
    parts = []
    for number, (metric, lines) in enumerate(metrics.items()):
        left, top = number % 2 * width, number // 2 * height
        parts.append(f'<g transform="translate({left} {top})">')
        parts += _panel(metric, units[metric], lines, first, last)
        parts.append("</g>")
    rows = -(-len(metrics) // 2)
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {2 * width} {rows * height}"'
    style = 'font-family="sans-serif" font-size="11" fill="#24292f"'
    return (
        "\n".join([f"{head} {style}>", '<rect width="100%" height="100%" fill="#ffffff"/>', *parts, "</svg>"])
        + "\n"
    )


def _panel(metric: str, unit: str, lines: dict[str, list[tuple[int, float]]], first: int, last: int) -> list[str]:
    """One metric: axes with the first and last date, from zero to the largest value."""
    width, height = _PANEL
    left, right, top, bottom = 44, width - 14, 34, height - 30
    largest = max(value for points in lines.values() for _, value in points) or 1

    def at(day: int, value: float) -> tuple[str, str]:
        x = left + 8 + (right - left - 16) * ((day - first) / (last - first) if last > first else 0.5)
        return f"{x:.1f}", f"{bottom - (bottom - top) * value / largest:.1f}"

    title = f"{metric[:1].upper()}{metric[1:]}" + (f" ({unit})" if unit else "")
    parts = [
        f'<text x="{left - 34}" y="20" font-weight="bold">{escape(title)}</text>',
        f'<path d="M{left} {top}V{bottom}H{right}" fill="none" stroke="#8c959f"/>',
        f'<text x="{left - 6}" y="{top + 4}" text-anchor="end">{largest:.3g}</text>',
        f'<text x="{left - 6}" y="{bottom + 4}" text-anchor="end">0</text>',
        f'<text x="{left}" y="{bottom + 18}">{dt.date.fromordinal(first)}</text>',
        f'<text x="{right}" y="{bottom + 18}" text-anchor="end">{dt.date.fromordinal(last)}</text>',
    ]
    for number, (series, points) in enumerate(lines.items()):
        colour = _COLOURS[number % len(_COLOURS)]
        placed = [at(*point) for point in points]
        if len(placed) > 1:
            route = " ".join(f"{x},{y}" for x, y in placed)
            parts.append(f'<polyline points="{route}" fill="none" stroke="{colour}"/>')
        for (x, y), (_, value) in zip(placed, points, strict=True):
            name = escape(f"{series}: {value:g} {unit}".strip())
            parts.append(f'<circle cx="{x}" cy="{y}" r="3.5" fill="{colour}"><title>{name}</title></circle>')
    return parts


def conformance_page() -> str:
    """docs/dev/conformance.md: the newest result of each suite of another project."""
    newest: dict[str, dict[str, Any]] = {}
    for text in (ROOT / "tests" / "optin" / "conformance" / "results.jsonl").read_text("utf-8").splitlines():
        line = json.loads(text)
        earlier = newest.pop(line["suite"], None)
        newest[line["suite"]] = (
            {"before": f"{earlier['passed']} of {earlier['checked']}"} | line if earlier else line
        )
    lines = [
        "# Other projects' tests",
        "",
        "Generated from `tests/optin/conformance/results.jsonl`. *As expected* counts what behaves as the other",
        "project's tests or the standard want it; each remaining difference is listed below with its reason.",
        "",
        "| Suite | As expected | Before | Date, commit |",
        "|---|---|---|---|",
    ]
    for suite, line in newest.items():
        before = line.get("before", "")
        lines.append(
            f"| {suite} | {line['passed']} of {line['checked']} | {before} | {line['date']}, {line['commit']} |"
        )
    for suite, line in newest.items():
        lines += ["", f"## {suite}", ""]
        lines += [line["note"], ""] if line.get("note") else []
        lines += [f"- {count}: {why}" for why, count in line["differs"].items()] or ["No differences."]
    return "\n".join(lines).rstrip() + "\n"


PAGES: Final = {
    "benchmarks.md": benchmarks_page,
    "dev/conformance.md": conformance_page,
    "benchmarks.svg": benchmarks_plot,
    "cli.md": command_page,
    "settings.md": settings_page,
    "troubleshooting.md": remedies_page,
}


def main() -> int:
    """Build the site and fail on dead links; with --pages, write the generated pages."""
    if sys.argv[1:] == ["--pages"]:
        for name, page in PAGES.items():
            (ROOT / "docs" / name).write_text(page(), encoding="utf-8")
        return 0
    out = Path(sys.argv[1]) if len(sys.argv) > 1 else ROOT / "build" / "site"
    folder = ROOT / "build" / "site-tools"
    python = folder / ("Scripts/python.exe" if os.name == "nt" else "bin/python")
    if not (folder / "complete").exists():
        venv.create(folder, with_pip=True, clear=True)
        pip = [str(python), "-m", "pip", "install", "-q", "--disable-pip-version-check", "--require-hashes"]
        subprocess.run([*pip, "-r", str(ROOT / "installers" / "lock" / "site.txt")], check=True)
        (folder / "complete").touch()
    env = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    command = [str(python), "-m", "mkdocs", "build", "--strict", "--site-dir", str(out.resolve())]
    return subprocess.run(command, cwd=ROOT, env=env, check=False).returncode


if __name__ == "__main__":
    sys.exit(main())
