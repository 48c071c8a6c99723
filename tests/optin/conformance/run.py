"""Other servers' own tests against a running Tessera, with a table of what may differ and why.

    python tests/optin/conformance/run.py SUITE FOLDER URL MODEL [--python PYTHON] [--only basic] [--record]

SUITE and its FOLDER: `llama_server`, tools/server/tests of a llama.cpp checkout; `lemonade`, test of a Lemonade
checkout; `vllm`, tests of a vLLM checkout or source package. Nothing is fetched. PYTHON needs pytest,
pytest-timeout, pytest-asyncio, requests, numpy, openai, anthropic, ollama, httpx, fastapi, jsonschema, regex, wget
and filelock.
Prints each failure that has no reason in expected.toml and each difference there that is none any more, counts the
others, and ends with 1 where there is one of either. A reason covers the tests named under it where they fail with
the words that it gives; a test may also pass for another reason than its own, which `passes_falsely` names.
`--record` appends the counts to results.jsonl, from which docs/dev/conformance.md is generated.
OpenAI's published document is compared by openai_schema.py beside this file.
"""

import argparse
import datetime as dt
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import tomllib
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple
from xml.etree import ElementTree as ET  # our own report, written by pytest

HERE = Path(__file__).parent
# They need a separate server with other flags, a download, or llama.cpp's internals.
LLAMA_LEFT_OUT = (
    "router", "sleep", "mcp_servers", "tools_builtin", "kv_keep_only_active", "lora", "speculative", "vision_api",
    "slot_save", "proxy", "compat_gcp",
)  # fmt: skip
# The files whose tests use a server. Lemonade's others manage its own models, backends and clouds.
LEMONADE = ("server_llm", "test_ollama", "server_streaming_errors")
VLLM = {
    "completion": "openai/completion/test_completion.py",
    "chat": "openai/chat_completion/test_chat.py",
    "chat_completion": "openai/chat_completion/test_chat_completion.py",
    "function_calling": "openai/chat_completion/test_completion_with_function_calling.py",
    "logit_bias": "openai/chat_completion/test_chat_logit_bias_validation.py",
    "include_reasoning": "openai/chat_completion/test_include_reasoning.py",
    "responses": "openai/responses/test_simple.py",
    "messages": "anthropic/test_messages.py",
    "tokenization": "serve/tokenize/test_tokenization.py",
    "basic": "serve/instrumentator/test_basic.py",
}
MODEL_OF = re.compile(r"^(MODEL_NAME|MODEL) = \"[^\"]*\"", re.MULTILINE)
# The name of a model that vLLM's tests of Anthropic's protocol give their server as an alias.
ALIAS = "claude-3-7-sonnet-latest"
RESULTS = HERE / "results.jsonl"


def llama_server(folder: Path, work: Path, only: list[str], _: str) -> list[str]:
    """Copy the tests; return what to run."""
    shutil.copytree(folder, work, dirs_exist_ok=True)
    for name in LLAMA_LEFT_OUT:
        (work / "unit" / f"test_{name}.py").unlink(missing_ok=True)
    return [f"unit/test_{name}.py" for name in only] or ["unit"]


def lemonade(folder: Path, work: Path, only: list[str], _: str) -> list[str]:
    """Copy the tests; return what to run."""
    shutil.copytree(folder / "utils", work / "utils")
    for name in LEMONADE:
        shutil.copy(folder / f"{name}.py", work)
    return [f"{name}.py" for name in only or LEMONADE]


def vllm(folder: Path, work: Path, only: list[str], model: str) -> list[str]:
    """Copy the tests with this model's name in them; return what to run. `tests.utils` is the plugin's."""
    chosen = [VLLM[name] for name in only or VLLM if (folder / "entrypoints" / VLLM[name]).exists()]
    for name in chosen:
        place = work / "tests" / "entrypoints" / name
        place.parent.mkdir(parents=True, exist_ok=True)
        text = (folder / "entrypoints" / name).read_text("utf-8")
        place.write_text(MODEL_OF.sub(rf'\1 = "{model}"', text).replace(ALIAS, model), "utf-8")
        beside = folder / "entrypoints" / Path(name).parent / "conftest.py"
        if beside.exists():
            shutil.copy(beside, place.parent)
    shared = folder / "entrypoints" / "conftest.py"
    if shared.exists():
        shutil.copy(shared, work / "tests" / "entrypoints")
    for place in [work / "tests", *(work / "tests").rglob("*/")]:
        (place / "__init__.py").touch()
    return [f"tests/entrypoints/{name}" for name in chosen]


SUITES: dict[str, Callable[[Path, Path, list[str], str], list[str]]] = {
    "llama_server": llama_server,
    "lemonade": lemonade,
    "vllm": vllm,
}


def run(suite: str, python: str, folder: Path, server: str, only: list[str]) -> Path:
    """Run a copy of the tests; returns pytest's report."""
    work = Path(tempfile.mkdtemp())
    what = SUITES[suite](folder, work, only, server.split(" ")[1])
    report = work / "report.xml"
    options = [
        "-q",
        "-p",
        f"pointed_{suite}",
        "-o",
        "addopts=",
        "-m",
        "not slow",
        "--timeout",
        "180",
        f"--junit-xml={report}",
    ]
    subprocess.run(
        [python, "-m", "pytest", *options, f"--junit-xml={report}", *what],
        cwd=work,
        env={**os.environ, "CONFORMANCE_SERVER": server, "PYTHONPATH": f"{work}{os.pathsep}{HERE}"},
        check=False,
        timeout=7200,
    )
    return report


class Reason(NamedTuple):
    """Why tests differ: their names, `name[*]` for all of its parameters, and the text of such a failure.

    `passes_falsely`: the tests pass, but the expected thing is absent for a reason other than theirs.
    """

    why: str
    says: str
    tests: list[str]
    passes_falsely: bool = False

    def covers(self, name: str) -> bool:
        """Whether a test is one of them."""
        return any(t == name or (t.endswith("[*]") and name.startswith(t[:-2])) for t in self.tests)


def reasons(suite: str) -> list[Reason]:
    """The table of a suite."""
    table = tomllib.loads((HERE / "expected.toml").read_text("utf-8"))[suite]
    return [
        Reason(row["why"], row.get("says", ""), row["tests"], row.get("passes_falsely", False)) for row in table
    ]


def differences(suite: str, report: Path) -> Counter[str]:
    """Print unexplained failures and differences that no longer occur; return the number of each."""
    expected = reasons(suite)
    counts: Counter[str] = Counter()
    for case in ET.parse(report).getroot().iter("testcase"):
        name = f"{(case.get('classname') or '').rpartition('test_')[2]}::{case.get('name')}"
        problem = next((case.find(kind) for kind in ("failure", "error") if case.find(kind) is not None), None)
        said = " ".join((problem.get("message") or "").split()) if problem is not None else ""
        reason = next((r for r in expected if r.covers(name)), None)
        if case.find("skipped") is not None:
            counts["skipped"] += 1
        elif problem is None and reason and reason.passes_falsely:
            counts[f"passes for another reason: {reason.why}"] += 1
        elif problem is None:
            counts["SAME" if reason else "passed"] += 1
            if reason:
                print(f"SAME {name}: passes, though expected.toml says: {reason.why}")
        elif reason is None or not re.search(reason.says, said):
            counts["UNEXPECTED"] += 1
            print(f"UNEXPECTED {name}: {said[:220]}")
        else:
            counts[reason.why] += 1
    return counts


def record(suite: str, counts: Counter[str]) -> None:
    """Append these counts to the results."""
    commit = subprocess.run(["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=True)
    line = {
        "date": dt.datetime.now(dt.UTC).date().isoformat(),
        "commit": commit.stdout.strip(),
        "suite": suite,
        "checked": counts.total() - counts["skipped"],
        "passed": counts["passed"] + counts["SAME"],
        "differs": {why: n for why, n in counts.most_common() if why not in {"passed", "SAME", "skipped"}},
    }
    with RESULTS.open("a", encoding="utf-8") as file:
        file.write(json.dumps(line, ensure_ascii=False) + "\n")


def main() -> int:
    """Run, compare, print."""
    parser = argparse.ArgumentParser()
    parser.add_argument("suite", choices=SUITES)
    parser.add_argument("folder", type=Path)
    parser.add_argument("url")
    parser.add_argument("model")
    parser.add_argument("--only", default="")
    parser.add_argument("--python", default=sys.executable)
    parser.add_argument("--record", action="store_true")
    given = parser.parse_args()
    only = [name for name in given.only.split(",") if name]
    report = run(given.suite, given.python, given.folder, f"{given.url.rstrip('/')} {given.model}", only)
    print(report)
    counts = differences(given.suite, report)
    for reason, count in counts.most_common():
        print(f"{count:4}  {reason}")
    if given.record:
        record(given.suite, counts)
    return 1 if counts["UNEXPECTED"] or counts["SAME"] else 0


if __name__ == "__main__":
    sys.exit(main())
