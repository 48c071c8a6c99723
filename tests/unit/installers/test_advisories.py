"""Advisories in a folder of OSV files: the versions that they affect."""

import json

import pytest

from installers.advisories import hits_of, read


def written(folder, name, **said):
    body = {"id": name, "published": "2026-01-02T00:00:00Z", "details": "bad\nmore", **said}
    (folder / f"{name}.json").write_text(json.dumps(body))


def affected(events=(), versions=(), ecosystem="PyPI", kind="ECOSYSTEM"):
    ranges = [{"type": kind, "events": list(events)}] if events else []
    package = {"ecosystem": ecosystem, "name": "Some_Thing"}
    return [{"package": package, "ranges": ranges, "versions": list(versions)}]


RANGES = (
    ([{"introduced": "0"}, {"fixed": "1.2"}], {"1.1": True, "1.2rc1": True, "1.2": False, "3": False}),
    ([{"introduced": "2"}, {"last_affected": "2.5"}], {"1.9": False, "2.5": True, "2.5.1": False}),
    (
        [{"fixed": "1.2"}, {"introduced": "2"}, {"introduced": "1"}, {"fixed": "2.1"}],
        {"0.9": False, "1.1": True, "1.5": False, "2.0": True, "2.1": False},
    ),
    ([{"introduced": "0"}], {"99": True}),
    ([{"introduced": "first-commit"}, {"fixed": "one day"}], {"1": True, "99": True}),
)


@pytest.mark.parametrize(("events", "versions"), RANGES)
def test_a_range_hits_what_lies_in_it(tmp_path, events, versions):
    written(tmp_path, "A-1", affected=affected(events))
    known = list(read(tmp_path))
    assert {v: bool(hits_of(known, {"some-thing": v})) for v in versions} == versions


def test_named_versions_hit_and_yaml_is_read(tmp_path):
    (tmp_path / "A-2.yaml").write_text(
        "id: A-2\ndetails: bad\naffected:\n- package: {ecosystem: PyPI, name: some.thing}\n  versions: ['1.0']\n"
    )
    known = list(read(tmp_path))
    assert [a.id for a in hits_of(known, {"some-thing": "1.0"})] == ["A-2"]
    assert hits_of(known, {"some-thing": "1.0.1"}) == []


def test_other_ecosystems_commits_and_what_was_taken_back_hit_nothing(tmp_path):
    everything = [{"introduced": "0"}]
    written(tmp_path, "A-3", affected=affected(everything, ecosystem="npm"))
    written(tmp_path, "A-4", affected=affected(everything, kind="GIT"))
    written(tmp_path, "A-5", affected=affected(everything), withdrawn="2026-02-02T00:00:00Z")
    assert hits_of(read(tmp_path), {"some-thing": "1.0"}) == []


def test_safety_db_is_read_with_its_date(tmp_path):
    listed = {"$meta": {"timestamp": 1775023247}, "Some_Thing": ["<1.2", ">=2,<2.1"], "odd": ["one day"]}
    (tmp_path / "insecure.json").write_text(json.dumps(listed))
    known = list(read(tmp_path))
    assert {a.published for a in known} == {"2026-04-01"}
    hit = {v: bool(hits_of(known, {"some-thing": v})) for v in ("1.1", "1.2", "2.0.5", "2.1")}
    assert hit == {"1.1": True, "1.2": False, "2.0.5": True, "2.1": False}
    assert hits_of(known, {"odd": "1"})
