"""Fixed-shape speech graphs: padding of a short sound changes nothing, and a damaged folder is refused."""

import numpy as np
import pytest

from engine.runner.onnx.speech.audio import RATE
from engine.runner.onnx.speech.child import FixedMoonshine
from engine.runner.onnx.speech.moonshine import BadSpeechModel
from quantize.errors import UnsupportedModel
from quantize.onnx.speech import frames_of, rotary_rows, write_speech
from tests.support.models.tiny_speech import EMBD, tiny_speech, weights


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    made = []
    for seconds in (1.0, 2.5):
        folder = tmp_path_factory.mktemp("speech")
        tiny_speech(folder, seconds)
        made.append(folder)
    return made


def test_what_fills_a_short_sound_up_changes_nothing(folders):
    sound = np.random.default_rng(1).normal(size=RATE).astype(np.float32) / 4
    tight, roomy = (FixedMoonshine(folder, 1).transcribe(sound) for folder in folders)
    assert tight[1] == roomy[1]
    assert len(tight[1]) > 3
    assert tight[2] == pytest.approx(roomy[2], abs=1e-3)
    other = FixedMoonshine(folders[0], 1).transcribe(sound[: RATE // 2])
    assert other[2] != pytest.approx(tight[2], abs=1e-3)  # the length matters


def test_more_sound_than_fits_is_refused(folders):
    with pytest.raises(ValueError, match="do not fit"):
        FixedMoonshine(folders[0], 1).transcribe(np.zeros(2 * RATE, np.float32))


def test_a_damaged_folder_is_refused(folders, tmp_path):
    for name in ("tokenizer.bin", "hear.onnx", "say.onnx", "speech.onnx.data", "speech.json", "embedding.bin"):
        (tmp_path / name).write_bytes((folders[0] / name).read_bytes())
    (tmp_path / "embedding.bin").write_bytes(b"\0" * 10)
    with pytest.raises(BadSpeechModel, match=r"embedding\.bin"):
        FixedMoonshine(tmp_path, 1)
    facts = (tmp_path / "speech.json").read_text()
    (tmp_path / "speech.json").write_text(facts.replace('"frames":', '"frames":1'))
    with pytest.raises(BadSpeechModel, match="impossible sizes"):
        FixedMoonshine(tmp_path, 1)


def test_a_missing_weight_is_named(tmp_path):
    given = weights()
    del given["decoder.1.encoder_attn.v_proj"]
    with pytest.raises(UnsupportedModel, match=r"decoder\.1\.encoder_attn\.v_proj"):
        write_speech(given, tmp_path, seconds=1, tokens=8)


def test_rows_turn_pairs_and_leave_the_rest(folders):
    shape = FixedMoonshine(folders[0], 1).shape
    cos, sin = rotary_rows(shape, 4)
    assert cos.shape == (4, EMBD // 8)
    assert np.all(cos[:, shape.rotary :] == 1)
    assert np.all(sin[:, shape.rotary :] == 0)
    assert cos[2, 0] == pytest.approx(np.cos(2))
    assert frames_of(shape.samples) == (shape.first, shape.frames)
