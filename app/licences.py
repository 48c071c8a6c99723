"""The components of this program with their licences: packages, their libraries, data and fonts."""

import re
from collections import deque
from collections.abc import Iterable
from importlib import metadata
from pathlib import Path
from typing import Final

import msgspec
from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import canonicalize_name

from devices.msgspec_lock import learned

ASSETS: Final = Path(__file__).resolve().parent.parent / "assets"
# Dependencies of the tests are not part of the program; an installed program does not have them.
EXTRAS: Final = ("", "code", "documents", "hub", "onnx", "quantize", "remote", "terminal", "window")
_LICENCE: Final = re.compile(r"(?i)(^|/)(licen[cs]es?|copying|notice)[^/]*(/[^/]+)?$")
# Longer licence files list every package in a binary; their beginning names the owner.
MAX_TEXT: Final = 200_000
# Packages without a machine-readable licence. Source: the project's own LICENSE file.
TABLE: Final = {
    "flatbuffers": "Apache-2.0",
    "gguf": "MIT",
    "llama-cpp-python": "MIT",
    "onnxruntime-genai": "MIT",
    "pyside6-essentials": "LGPL-3.0-only",
    "shiboken6": "LGPL-3.0-only",
}
UNSAID: Final = "see its text"
BROUGHT: Final = "licences/brought.json"


class Component(msgspec.Struct, frozen=True, kw_only=True):
    """One component. `licence` is an SPDX expression if the publisher gives one, else the publisher's text."""

    name: str
    version: str
    licence: str
    page: str = ""
    text: str = ""


def components() -> tuple[Component, ...]:
    """All components, sorted by name. Reads the metadata of installed packages, which takes 0.1 s."""
    all_components = [*packages(), *_ours(), *_bundled()]
    return tuple(sorted(all_components, key=lambda each: each.name.lower()))


def own_licence() -> str:
    """The licence text of Tessera; empty if the installation is damaged."""
    for folder in (ASSETS.parent, ASSETS):
        try:
            return (folder / "LICENSE").read_text(encoding="utf-8")
        except OSError:
            continue
    return ""


def packages(requirements: Iterable[str] | None = None) -> list[Component]:
    """Installed packages that `requirements` needs, without duplicates; default: what Tessera itself requires."""
    if requirements is None:
        requirements = metadata.requires("tessera") or ()
    waiting = deque(_needed(requirements, EXTRAS))
    seen = {"tessera"}
    result: list[Component] = []
    while waiting:
        name, extras = waiting.popleft()
        if canonicalize_name(name) in seen:
            continue
        try:
            dist = metadata.distribution(name)
        except metadata.PackageNotFoundError:
            continue  # required only on another system, or omitted from the bundle
        seen.add(canonicalize_name(name))
        result.append(_component(dist))
        waiting.extend(_needed(dist.requires or (), extras))
    return result


def _needed(requires: Iterable[str], extras: tuple[str, ...]) -> Iterable[tuple[str, tuple[str, ...]]]:
    for words in requires:
        try:
            requirement = Requirement(words)
        except InvalidRequirement:
            continue
        if requirement.marker is None or any(requirement.marker.evaluate({"extra": extra}) for extra in extras):
            yield requirement.name, ("", *requirement.extras)


def _component(dist: metadata.Distribution) -> Component:
    facts = dist.metadata
    name = facts["Name"]
    declared = _licence(facts)
    pages = [page.partition(",")[2].strip() for page in facts.get_all("Project-URL") or ()]
    return Component(
        name=name,
        version=dist.version,
        licence=declared or UNSAID,
        page=_field(facts, "Home-page") or next(iter(pages), ""),
        text=_text(dist) or _bundled_text(declared),
    )


def _licence(facts: metadata.PackageMetadata) -> str:
    """The most precise licence statement of the publisher; empty if there is none."""
    if licence := TABLE.get(canonicalize_name(facts["Name"])) or _field(facts, "License-Expression"):
        return licence
    words = _field(facts, "License").strip()
    if words and "\n" not in words and len(words) < 80:  # noqa: PLR2004 - a longer value is the text itself
        return words
    classes = [c.rpartition(" :: ")[2] for c in facts.get_all("Classifier") or () if c.startswith("License ::")]
    return " OR ".join(c for c in classes if c != "OSI Approved")


def _field(facts: metadata.PackageMetadata, name: str) -> str:
    return str(facts[name]) if name in facts else ""


def _text(dist: metadata.Distribution) -> str:
    parts: list[str] = []
    for file in dist.files or ():
        if ".dist-info/" not in str(file) and str(file).count("/") > 1:
            continue
        if _LICENCE.search(str(file)) and not str(file).endswith((".py", ".pyc")):
            try:
                parts.append(file.read_text(encoding="utf-8"))
            except (OSError, UnicodeDecodeError, ValueError):
                continue
    return "\n\n".join(parts)[:MAX_TEXT]


def _bundled_text(licence: str) -> str:
    """Licence text for packages without one: Qt's licences are in the assets, Apache's is Tessera's own LICENSE."""
    if "Apache" in licence:
        return own_licence()
    if licence == "MIT":
        return (ASSETS / "licences" / "MIT.txt").read_text(encoding="utf-8")
    if "LGPL-3.0" not in licence:
        return ""
    texts = [(ASSETS / "licences" / f"{name}.txt").read_text(encoding="utf-8") for name in ("LGPL-3.0", "GPL-3.0")]
    words = "Used under the LGPL 3.0: Qt's libraries are files of their own here and may be exchanged.\n\n"
    return words + "\n\n".join(texts)


def _bundled() -> list[Component]:
    """Python and the system libraries in an installed program; the build lists them (attribution.py)."""
    try:
        data = (ASSETS / BROUGHT).read_bytes()
    except OSError:
        return []  # a source tree uses the libraries of its system
    return msgspec.json.decode(data, type=learned(list[Component]))


def _ours() -> list[Component]:
    """Components without package metadata: llama.cpp inside its bindings, fonts, texts, models."""
    rows = (
        ("llama.cpp and ggml", "MIT", "https://github.com/ggml-org/llama.cpp", "licences/llama.cpp.txt"),
        (
            "winpthreads and GCC's libraries, in kernels for Windows",
            "MIT AND BSD-3-Clause AND GPL-3.0-or-later WITH GCC-exception-3.1",
            "https://www.mingw-w64.org",
            "licences/mingw-w64.txt",
        ),
        ("Inter (font)", "OFL-1.1", "https://rsms.me/inter", "fonts/OFL.txt"),
        ("JetBrains Mono (font)", "OFL-1.1", "https://www.jetbrains.com/lp/mono", "fonts/OFL-JetBrainsMono.txt"),
        ("Texts for calibration and measurement", "see its text", "", "text/README.md"),
        ("Spark, the bundled toy model", "see its text", "", "models/spark-f16.md"),
        ("SmolLM2 135M Instruct, the first chat model", "Apache-2.0", "", "models/smollm2-135m-instruct.md"),
    )
    result = []
    for name, licence, page, file in rows:
        try:
            text = (ASSETS / file).read_text(encoding="utf-8")
        except OSError:
            continue  # not part of this installation
        result.append(Component(name=name, version="", licence=licence, page=page, text=text))
    return result
