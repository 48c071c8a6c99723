"""The documentation site contains every page, generated pages are up to date, and links have targets."""

import itertools
import json
import re
from pathlib import Path
from types import SimpleNamespace

import pytest
import yaml

from devices.install_hints import missing_backend, no_device
from installers.docs_site import PAGES, SHIM, front_page, on_post_page, remedies_page
from tests.bench.recording import newest

ROOT = Path(__file__).resolve().parents[3]
DOCS = ROOT / "docs"


def named(entry) -> set[str]:
    if isinstance(entry, str):
        return {entry}
    return set().union(*(named(each) for each in (entry.values() if isinstance(entry, dict) else entry)))


def test_every_page_has_its_place():
    pages = named(yaml.safe_load((ROOT / "mkdocs.yml").read_text(encoding="utf-8"))["nav"])
    there = {path.relative_to(DOCS).as_posix() for path in DOCS.rglob("*.md")}
    assert pages == {page for page in there - {"README.md"} if not page.startswith("adr/")} | {"index.md"}


def test_the_list_of_pages_for_forges_leads_to_each_page_of_the_site():
    """Parts of the API reference, integrations and developer pages are reached through their overviews."""
    listed = set(TARGET.findall((DOCS / "README.md").read_text(encoding="utf-8")))
    top = {page.name for page in DOCS.glob("*.md")} - {"README.md"}
    assert top - {target for target, _ in listed} == set()


def test_decision_records_are_numbered_once():
    pages = sorted((DOCS / "adr").glob("*.md"))
    numbers = [int(page.name[:4]) for page in pages]
    assert numbers == list(range(1, len(pages) + 1))
    assert [
        page.name for page in pages if not page.read_text(encoding="utf-8").startswith(f"# {int(page.name[:4])}. ")
    ] == []


def test_no_page_has_marks_of_an_unfinished_merge():
    marks = re.compile(r"^<{7} |^>{7} ", re.MULTILINE)
    assert [page.name for page in DOCS.rglob("*.md") if marks.search(page.read_text(encoding="utf-8"))] == []


@pytest.mark.parametrize("name", PAGES)
def test_generated_pages_are_of_this_program(name):
    """Written by `python installers/docs_site.py --pages`."""
    assert (DOCS / name).read_text(encoding="utf-8") == PAGES[name]()


TARGET = re.compile(r"\]\(([^)#\s]*)(?:#([^)\s]*))?\)")


def dead_links(page: Path) -> list[str]:
    """Targets of links and images that do not exist."""
    text = re.sub(r"```.*?```|`[^`\n]*`", "", page.read_text(encoding="utf-8"), flags=re.DOTALL)
    dead = []
    for target, anchor in TARGET.findall(text):
        file = (page.parent / target).resolve() if target else page
        here = target.startswith(("http", "mailto")) or file.exists()
        if not here or (anchor and file.suffix == ".md" and anchor not in anchors(file)):
            dead.append(f"{page.name}: {target}#{anchor}")
    return dead


def test_links_and_pictures_of_all_pages_lead_somewhere():
    pages = [
        ROOT / "README.md",
        ROOT / "CONTRIBUTING.md",
        *DOCS.rglob("*.md"),
    ]
    assert [dead for page in pages for dead in dead_links(page)] == []


def anchors(page: Path) -> set[str]:
    """The anchors of a page's headings, as Markdown renderers create them."""
    headings = re.findall(r"^#+ (.*)$", page.read_text(encoding="utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


USER_PAGES = sorted([*DOCS.glob("*.md"), *(DOCS / "integrations").glob("*.md"), *(DOCS / "api").glob("*.md")])
WRITTEN = [page for page in USER_PAGES if page.name not in {*PAGES}]  # not generated


def words(page: Path) -> int:
    """Words of a page as readers count them: without code, table rules and URLs."""
    text = re.sub(
        r"```.*?```|\]\([^)]*\)|^[|\- ]+$", " ", page.read_text(encoding="utf-8"), flags=re.DOTALL | re.MULTILINE
    )
    return len(re.findall(r"[\w'-]+", text))


def test_pages_are_short():
    assert words(ROOT / "README.md") < 700
    assert {page.name: count for page in WRITTEN if (count := words(page)) > 1500} == {}
    assert sum(words(page) for page in WRITTEN) < 25_000


def test_pages_for_users_name_no_source_file():
    """Commands in code blocks may start a script, and `start.py` is a command itself."""
    source = re.compile(r"(?:engine|app|quantize|devices|tests|installers)/[\w/]+\.(?:py|toml|cpp)|\btests\.\w+")
    texts = {page.name: re.sub(r"```.*?```", "", page.read_text("utf-8"), flags=re.DOTALL) for page in WRITTEN}
    assert {name: found for name, text in texts.items() if (found := source.findall(text))} == {}


def test_sizes_are_in_binary_units():
    """As in window and terminal. `4.5GB`, without a space, is the value of an option."""
    decimal = re.compile(r"\d (?:[GM]B|kB)\b(?!/s)")
    texts = {page.name: page.read_text("utf-8") for page in (ROOT / "README.md", *WRITTEN)}
    assert {name: found for name, text in texts.items() if (found := decimal.findall(text))} == {}


# Rows of README's table of speeds: the recorded model, types (None: all) and instructions that each row sums up.
SPEEDS = {
    "0.6B shape, Q4_0, Q8_0, MXFP4": ("0.6B shape", {"Q4_0", "Q8_0", "MXFP4"}, "", {512, 0}),
    "0.6B shape, Q4_K_M, Q6_K, IQ4_XS": ("0.6B shape", {"Q4_K_M", "Q6_K", "IQ4_XS"}, "", {512, 0}),
    "0.6B shape, Q4_0, Q4_K_M, 16,384 tokens": ("0.6B shape", {"Q4_0", "Q4_K_M"}, "", {16384}),
    "0.6B shape, F16": ("0.6B shape", {"F16"}, "", {512, 0}),
    "1.7B, 4B, 8B shapes, Q4_K_M": ("[148].*B shape", {"Q4_K_M"}, "", None),
    "SmolLM2 135M, Q4_1": ("SmolLM2 135M Q4_1", {""}, "", None),
    "0.6B shape with AVX2": ("0.6B shape", None, "AVX2", {512, 0}),
}


def recorded_speeds(
    metric: str, model: str, types: set[str] | None, instructions: str, lengths: set[int] | None
) -> list[float]:
    """The newest figures of a metric for models whose name matches the pattern `model`. None: of all."""
    found = []
    for line in newest():
        given = {"type": "", "instructions": "", **line["parameters"]}
        is_model = re.fullmatch(model, given.get("model", ""))
        if is_model and (line["metric"], given["instructions"]) == (metric, instructions):
            is_type = types is None or given["type"] in types
            is_length = lengths is None or given.get("tokens", given.get("depth")) in lengths
            found += [line["value"]] if is_type and is_length else []
    return found


def test_speeds_of_the_readme_are_recorded():
    """A cell is the only recorded figure, or the least and the largest, rounded to the cell's decimals."""
    table = (ROOT / "README.md").read_text("utf-8").partition("| Speed compared")[2].partition("\n\n")[0]
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in table.splitlines()[2:]]
    assert [row[0] for row in rows] == [*SPEEDS]
    for label, *cells in rows:
        for metric, cell in zip(("prompt speed", "decode speed"), cells, strict=True):
            shown = re.findall(r"[\d.]+", cell)
            values = recorded_speeds(metric, *SPEEDS[label])
            ends = sorted({min(values), max(values)})
            rounded = [f"{end:.{len(text.partition('.')[2])}f}" for end, text in zip(ends, shown, strict=True)]
            assert shown == rounded, f"{label}, {metric}"


def test_the_changelog_has_one_line_per_entry_in_groups_and_none_twice():
    """The newest version's; a merge can bring old lines back next to their rewritten ones."""
    text = (ROOT / "CHANGELOG.md").read_text("utf-8").split("\n## ")[1]
    assert [line for line in text.splitlines()[1:] if line and not line.startswith(("### ", "#### ", "- "))] == []
    groups = [part.strip().splitlines() for part in text.split("\n### ")[1:]]
    assert [lines[0] for lines in groups if not lines[2].startswith("#### ")] == []
    entries = [line for line in text.splitlines() if line.startswith("- ")]
    words = [set(re.findall(r"[\w`/.-]{3,}", entry.lower())) for entry in entries]
    pairs = itertools.combinations(range(len(entries)), 2)
    alike = [(i, j) for i, j in pairs if len(words[i] & words[j]) > 0.8 * min(len(words[i]), len(words[j]))]
    assert [(entries[i], entries[j]) for i, j in alike] == []


# Homemade words that read as translated, each with a usual one. Only docs and texts of the window are checked.
HOMEMADE = {
    "anew": "again",
    "beside": "next to",
    "for ever": "forever",
    "mend": "fix",
    "mended": "fixed",
    "over there": "on that computer",
    "seldom": "rarely",
    "the way there": "the connection",
    "what is left": "the rest",
    "whereupon": "then",
}


def homemade(text: str) -> set[str]:
    return {word for word in HOMEMADE if re.search(rf"\b{word}\b", text, re.IGNORECASE)}


def test_docs_and_window_have_no_homemade_words():
    pages = [ROOT / "README.md", *(page for page in DOCS.rglob("*.md") if page.parent != DOCS / "adr")]
    translations = json.loads((ROOT / "assets/languages/de.json").read_text(encoding="utf-8"))
    texts = {page.name: page.read_text(encoding="utf-8") for page in pages} | {text: text for text in translations}
    assert {name: found for name, text in texts.items() if (found := homemade(text))} == {}


def test_the_front_page_links_only_to_what_is_in_the_site():
    links = re.findall(r"\]\(([^)#]+)", front_page())
    assert "gpu.md" in links
    assert [link for link in links if not link.startswith("http") and not (DOCS / link).exists()] == []


def test_remedies_are_doctors_own_words():
    page = remedies_page()
    assert missing_backend("vulkan", "linux", "x86_64", frozen=False).replace("|| ", "\\|\\| ") in page
    assert no_device("cuda", "windows") in page
    rows = [line for line in page.split("## Linux", 1)[1].splitlines() if line.startswith("|")]
    assert {len(re.findall(r"(?<!\\)\|", row)) for row in rows} <= {3, 4}


def test_no_page_fetches_anything():
    page = SimpleNamespace(file=SimpleNamespace(dest_uri="adr/one.html"))
    found = on_post_page('<script src="https://elsewhere.example/iframe-worker/shim"></script>', page, None)
    assert found == f'<script src="../assets/{SHIM}"></script>'
    assert (ROOT / "installers" / "site" / SHIM).exists()
