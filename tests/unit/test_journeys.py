"""docs/dev/journeys.md names existing places and counts them; no journey is longer than its row allows."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs/dev/journeys.md").read_text(encoding="utf-8")
JOURNEYS = {
    title: [line.removeprefix("→ ").split() for line in places.splitlines()]
    for title, places in re.findall(r"^## ([^\n]+)$.*?^```\n(.+?)\n```", PAGE, re.MULTILINE | re.DOTALL)
}
ROWS = {
    row[0]: tuple(map(int, row[1:]))
    for row in re.findall(r"^\| (.+?) \| (\d+) \| (\d+) \| (\d+), (\d+) \|", PAGE, re.MULTILINE)
}


def test_each_journey_has_its_row():
    assert len(JOURNEYS) == 7
    assert JOURNEYS.keys() == ROWS.keys()


@pytest.mark.parametrize("title", JOURNEYS)
def test_a_journey_is_as_long_as_its_row_says(title):
    places = JOURNEYS[title]
    missing = [
        (path, name)
        for path, name in places
        if not re.search(rf"\b(def|class) {name}\b|\b{name} = Route\[", (ROOT / path).read_text(encoding="utf-8"))
    ]
    assert missing == []
    hops, files, most_hops, most_files = ROWS[title]
    assert (hops, files) == (len(places) - 1, len({path for path, _ in places}))
    assert hops <= most_hops
    assert files <= most_files
