import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.runner.generation.text import TextStream


def run(pieces, stops=()):
    stream = TextStream(stops)
    out = []
    for piece in pieces:
        out.append(stream.push(piece))
        if stream.stop is not None:
            return out, stream.stop
    out.append(stream.finish())
    return out, None


def test_characters_are_never_cut():
    data = "Grüße 👋🏽 漢字".encode()
    out, _ = run([data[i : i + 1] for i in range(len(data))])
    assert "".join(out) == data.decode()
    assert "\ufffd" not in "".join(out)


def test_a_stop_over_token_borders_is_withheld_and_cut():
    out, stop = run([b"one <", b"|e", b"nd", b"|> two"], ["<|end|>"])
    assert "".join(out) == "one "
    assert stop == "<|end|>"


def test_a_false_start_of_a_stop_is_sent_after_all():
    out, stop = run([b"a <", b"|x", b" b"], ["<|end|>"])
    assert "".join(out) == "a <|x b"
    assert stop is None


def test_the_earliest_stop_wins():
    out, stop = run([b"abcdef"], ["ef", "cd"])
    assert "".join(out) == "ab"
    assert stop == "cd"


def test_bytes_that_are_no_text_become_replacement_characters():
    out, _ = run([b"a\xff", b"b\xe2", b"c"])
    assert "".join(out) == "a\ufffdb\ufffdc"


@pytest.mark.parametrize("stops", [[], ["x"], ["\u20ad"]])
def test_a_character_that_the_limit_cuts_is_left_out(stops):
    out, stop = run([b"a", b"b\xe2\x82"], stops)
    assert "".join(out) == "ab"
    assert stop is None


@given(st.text(min_size=1, max_size=60), st.lists(st.text(min_size=1, max_size=4), max_size=3), st.data())
def test_any_split_gives_the_text_up_to_the_first_stop(text, stops, data):
    raw = text.encode()
    cuts = sorted(data.draw(st.lists(st.integers(0, len(raw)), max_size=12)))
    pieces = [raw[a:b] for a, b in zip([0, *cuts], [*cuts, len(raw)], strict=True)]
    out, stop = run(pieces, stops)
    found = [raw.find(s.encode()) for s in stops]
    ends = [f for f in found if f >= 0]
    if not ends:
        assert "".join(out) == text
        assert stop is None
    else:
        # A stop string that completes in an earlier chunk takes precedence over one that starts earlier but ends
        # later.
        sent = "".join(out)
        assert text.startswith(sent)
        assert stop in stops
        assert text[len(sent) :].startswith(stop)
