"""The documentation's site: every page is in it, the made pages say what the program says, links lead somewhere."""

import re
from pathlib import Path
from types import SimpleNamespace

import yaml

from devices.install_hints import missing_backend, no_device
from installers.docs_site import SHIM, front_page, on_post_page, remedies_page

ROOT = Path(__file__).resolve().parents[3]
DOCS = ROOT / "docs"


def named(entry) -> set[str]:
    if isinstance(entry, str):
        return {entry}
    return set().union(*(named(each) for each in (entry.values() if isinstance(entry, dict) else entry)))


def test_every_page_has_its_place():
    pages = named(yaml.safe_load((ROOT / "mkdocs.yml").read_text(encoding="utf-8"))["nav"])
    assert pages == {path.name for path in DOCS.glob("*.md")} | {"index.md", "troubleshooting.md"}


def test_the_front_page_links_only_to_what_is_in_the_site():
    links = re.findall(r"\]\(([^)#]+)", front_page())
    assert "kernels.md" in links
    assert [link for link in links if not link.startswith("http") and not (DOCS / link).exists()] == []


def test_remedies_are_doctors_own_words():
    page = remedies_page()
    assert missing_backend("vulkan", "linux", "x86_64", frozen=False).replace("|| ", "\\|\\| ") in page
    assert no_device("cuda", "windows") in page
    rows = [line for line in page.splitlines() if line.startswith("|")]
    assert {len(re.findall(r"(?<!\\)\|", row)) for row in rows} <= {3, 4}


def test_no_page_fetches_anything():
    page = SimpleNamespace(file=SimpleNamespace(dest_uri="adr/one.html"))
    found = on_post_page('<script src="https://elsewhere.example/iframe-worker/shim"></script>', page, None)
    assert found == f'<script src="../assets/{SHIM}"></script>'
    assert (ROOT / "installers" / "site" / SHIM).exists()
