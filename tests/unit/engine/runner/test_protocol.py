import pytest

from engine.core.types import Delta, Done, GenerationRequest, SamplingParams, Timings, TokenLogprob, Usage
from engine.runner import protocol


def test_a_request_survives_the_wire():
    request = GenerationRequest(
        prompt=[1, 2, 3], stop=("a",), sampling=SamplingParams(temperature=0.5, logit_bias={3: 1.5}), logprobs=2
    )
    frame = protocol.frame(protocol.Submit(id=7, request=request))
    assert protocol.frame_length(frame[:4]) == len(frame) - 4
    assert protocol.decode_to_runner(frame[4:]) == protocol.Submit(id=7, request=request)


def test_events_survive_the_wire():
    logprob = TokenLogprob(5, b"\xff", -0.5, ((6, b"x", -1.0),))
    done = Done(finish_reason="stop", usage=Usage(prompt_tokens=1), timings=Timings(), stop="END")
    events = protocol.Events(items=[(1, Delta(text="ä", token_ids=(5,), logprobs=(logprob,))), (2, done)])
    assert protocol.decode_from_runner(protocol.frame(events)[4:]) == events


def test_an_overlong_frame_is_refused_on_both_sides(monkeypatch):
    with pytest.raises(ValueError, match="limit"):
        protocol.frame_length(b"\xff\xff\xff\xff")
    monkeypatch.setattr(protocol, "MAX_FRAME_BYTES", 100)
    with pytest.raises(ValueError, match="limit"):
        protocol.frame(protocol.Tokenize(id=1, text="x" * 200))


def test_frames_come_whole_however_the_bytes_are_cut():
    messages = [protocol.Heartbeat(step_s=float(i)) for i in range(5)] + [
        protocol.Pieces(id=1, pieces=[b"x" * 100_000])
    ]
    stream = b"".join(protocol.frame(m) for m in messages)
    for size in (1, 3, 4, 7, 1000, len(stream)):
        reader = protocol.FrameReader()
        bodies = [b for at in range(0, len(stream), size) for b in reader.feed(stream[at : at + size])]
        assert [protocol.decode_from_runner(b) for b in bodies] == messages
    with pytest.raises(ValueError, match="limit"):
        protocol.FrameReader().feed(b"\xff\xff\xff\xff")
