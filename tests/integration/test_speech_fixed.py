"""Fixed-shape speech graphs: padding of a short sound changes nothing, and a damaged folder is refused."""

import numpy as np
import pytest

from engine.runner.onnx.speech.audio import RATE
from engine.runner.onnx.speech.child import FixedMoonshine
from engine.runner.onnx.speech.moonshine import BadSpeechModel
from quantize.errors import UnsupportedModel
from quantize.onnx.speech import frames_of, layer_weights, rotary_rows, write_speech

EMBD, VOCAB, LAYERS = 64, 40, 2


def weights():
    rng = np.random.default_rng(5)

    def made(*shape, scale=None):
        return (rng.normal(size=shape) * (scale or shape[0] ** -0.5)).astype(np.float32)

    found = {
        "conv1": made(EMBD, 1, 127, scale=0.3),
        "conv2": made(2 * EMBD, EMBD, 7, scale=0.05),
        "conv2.bias": made(2 * EMBD, scale=0.1),
        "conv3": made(EMBD, 2 * EMBD, 3, scale=0.05),
        "conv3.bias": made(EMBD, scale=0.1),
        "embedding": made(VOCAB, EMBD, scale=1),
        "head": made(EMBD, VOCAB),
        "frequencies": (10000.0 ** -(np.arange(3) / 3)).astype(np.float32),
        "groupnorm": np.ones(EMBD, np.float32),
        "groupnorm.bias": np.zeros(EMBD, np.float32),
        "encoder.norm": np.ones(EMBD, np.float32),
        "decoder.norm": np.ones(EMBD, np.float32),
    }
    for name in layer_weights(LAYERS):
        wide = 2 * EMBD
        inner = 2 * wide if name.startswith("decoder") else wide
        shapes = {"fc1": (EMBD, inner), "fc1.bias": (inner,), "fc2": (wide, EMBD), "fc2.bias": (EMBD,)}
        found[name] = made(*shapes.get(".".join(name.split(".")[2:]), (EMBD, EMBD)))
    for layer in range(LAYERS):
        for side, norms in (
            ("encoder", ("input_layernorm", "post_attention_layernorm")),
            ("decoder", ("input_layernorm", "post_attention_layernorm", "final_layernorm")),
        ):
            found |= {f"{side}.{layer}.{norm}": np.ones(EMBD, np.float32) for norm in norms}
    return found


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    made = []
    pieces = b"".join(bytes([3]) + f"{i:03}".encode() for i in range(VOCAB))
    for seconds in (1.0, 2.5):
        folder = tmp_path_factory.mktemp("speech")
        write_speech(weights(), folder, seconds=seconds, tokens=20)
        (folder / "tokenizer.bin").write_bytes(pieces)
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
