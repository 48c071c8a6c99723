import pytest

from app.tools.types import ToolRefused, decode_arguments


def test_arguments_are_an_object_or_are_refused():
    assert decode_arguments("look", "") == {}
    assert decode_arguments("look", '{"at": [1]}') == {"at": [1]}
    for text, reason in (("{", "no JSON"), ("[1]", "must be an object"), ("[" * 100_000, "no JSON")):
        with pytest.raises(ToolRefused, match=reason):
            decode_arguments("look", text)
