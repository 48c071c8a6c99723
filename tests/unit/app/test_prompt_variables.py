"""Placeholders in prompts."""

from datetime import UTC, datetime

from app.suggestions import asked_for, filled


def test_names_are_asked_once_in_their_order_and_own_ones_never():
    assert asked_for("{{b}} {{ a }} {{b}} {{date}} {{model}} {not} {{}} {{ {x} }}") == ["b", "a"]


def test_known_places_are_filled_and_the_others_stay():
    now = datetime(2026, 11, 22, 9, 5, tzinfo=UTC)
    text = "{{date}} {{time}} {{model}}: {{ topic }} {{other}}"
    assert filled(text, {"topic": "{{date}}"}, "Spark", now) == "2026-11-22 09:05 Spark: {{date}} {{other}}"
