"""Real execution providers, if their wheels were unpacked. They are large and have their vendors' licences.

    pip install --no-deps --target QNN onnxruntime-qnn
    pip install --no-deps --target OV onnxruntime-openvino==1.24.1
    TESSERA_QNN_SITE=QNN TESSERA_OPENVINO_SITE=OV python -m pytest tests/optin/test_onnx_providers.py -s

On x86-64 Linux Qualcomm's wheel runs its emulator of the NPU. OpenVINO's wheel replaces the onnxruntime package,
so it is only used in a separate process. Each test prints the share of operators that the provider took.
"""

import asyncio
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

from engine.core.errors import BadModelFile
from engine.core.types import Delta, GenerationRequest, SamplingParams
from engine.runner.process import RunnerProcess
from engine.runner.protocol import LoadSettings
from quantize.onnx.folder import convert_gguf
from quantize.onnx.quark import export
from quantize.onnx.request import FixedOptions
from tests.support.models.bert_shape import write_bert
from tests.support.models.onnx_bert import write_onnx_bert

TEXTS = ["one two three", "tiles w1 w2 w3"]
SITES = {"QNNExecutionProvider": "TESSERA_QNN_SITE", "OpenVINOExecutionProvider": "TESSERA_OPENVINO_SITE"}


def run(path, work, provider="", **settings):
    async def main():
        site = os.environ.get(SITES.get(provider, ""), "")
        runner = await RunnerProcess.start("onnx", str(path), {"PYTHONPATH": f"{site}{os.pathsep}{Path.cwd()}"})
        try:
            given = {"n_ctx": 64, "n_threads": 1, "n_parallel": 1, "provider": provider, **settings}
            facts = await runner.load(LoadSettings(path=str(path), **given))
            return facts, await work(runner)
        finally:
            await runner.stop()

    return asyncio.run(main())


async def embed(runner):
    done = await runner.embed(TEXTS)
    return np.stack([np.frombuffer(v, "<f4") for v in done.vectors])


async def generate(runner):
    request = GenerationRequest(prompt="Once upon", sampling=SamplingParams(temperature=0), max_tokens=12)
    return [e.token_ids async for e in runner.generate(request) if isinstance(e, Delta)]


PLACED = """
import sys, numpy as np
from pathlib import Path
from engine.onnx.folder import OnnxFolder
from engine.runner import onnx_libraries
from engine.runner.onnx.providers import share_of, open_session, chosen_provider
from engine.runner.protocol import LoadSettings
ort = onnx_libraries.onnxruntime()
folder = OnnxFolder(path=Path(sys.argv[1]).parent, kind="embedding", architecture="", graphs=(Path(sys.argv[1]),))
choice = chosen_provider(LoadSettings(path="", provider=sys.argv[2]), folder)
print(share_of(folder, choice, plugin=choice.library is not None).text())
x = np.random.default_rng(0).normal(size=(4, 64)).astype(np.float32)
ours, wanted = (s.run(None, {"x": x})[0] for s in (
    open_session(ort, ort.SessionOptions(), sys.argv[1], choice),
    ort.InferenceSession(sys.argv[1], providers=["CPUExecutionProvider"])))
print("largest error", abs(ours - wanted).max(), "of", abs(wanted).max())
"""


def test_a_graph_of_fixed_shapes_is_placed(tmp_path, provider):
    """What an NPU's compiler takes: known sizes and plain operators."""
    weights = numpy_helper.from_array(np.random.default_rng(1).normal(size=(64, 32)).astype(np.float32), "w")
    nodes = [helper.make_node("MatMul", ["x", "w"], ["h"]), helper.make_node("Relu", ["h"], ["y"])]
    ends = [helper.make_tensor_value_info(n, 1, s) for n, s in (("x", [4, 64]), ("y", [4, 32]))]
    graph = helper.make_graph(nodes, "fixed", ends[:1], ends[1:], [weights])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    path = tmp_path / "model.onnx"
    path.write_bytes(model.SerializeToString())
    env = {**os.environ, "PYTHONPATH": f"{os.environ[SITES[provider]]}{os.pathsep}{Path.cwd()}"}
    command = [sys.executable, "-c", PLACED, str(path), provider]
    done = subprocess.run(command, env=env, capture_output=True, timeout=100, text=True)
    assert done.returncode == 0, done.stderr
    print(done.stdout)
    assert f"{provider}: 2 of 2 operators" in done.stdout or f"{provider}: 1 of 1 operators" in done.stdout


@pytest.fixture(scope="module")
def encoder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("bert")
    return write_onnx_bert(write_bert(folder / "bert.gguf"), folder / "onnx")


@pytest.fixture(params=SITES)
def provider(request):
    if SITES[request.param] not in os.environ:
        pytest.skip(f"set {SITES[request.param]}")
    return request.param


def test_without_permission_nothing_falls_back(encoder, provider):
    with pytest.raises(BadModelFile, match="would run on the CPU") as caught:
        run(encoder, embed, provider)
    print(caught.value)


def test_embeddings_on_the_provider(encoder, provider):
    facts, ours = run(encoder, embed, provider, allow_fallback=True)
    _, wanted = run(encoder, embed)
    print(provider, facts.metadata["note.0"], "cosine", (ours * wanted).sum(axis=1))
    assert facts.backend == provider
    assert ((ours * wanted).sum(axis=1) > 0.99).all()


def test_a_language_model_says_its_share(tmp_path, bundled_model):
    provider = "QNNExecutionProvider"
    if SITES[provider] not in os.environ:
        pytest.skip(f"set {SITES[provider]}")
    convert_gguf(bundled_model, tmp_path / "spark")
    with pytest.raises(BadModelFile, match="would run on the CPU"):
        run(tmp_path / "spark", generate, provider)
    facts, tokens = run(tmp_path / "spark", generate, provider, allow_fallback=True)
    print(facts.metadata["note.0"])
    assert tokens == run(tmp_path / "spark", generate)[1]


@pytest.mark.timeout(1800)  # the emulator takes seconds a token
def test_a_fixed_decoder_runs_on_the_emulator_whole(bundled_model, tmp_path):
    """Every node on Qualcomm's NPU (the fallback is off), the same text as on the CPU, compiled once."""
    provider = "QNNExecutionProvider"
    if SITES[provider] not in os.environ:
        pytest.skip(f"set {SITES[provider]}")
    convert_gguf(bundled_model, tmp_path / "fixed", fixed=FixedOptions(context=128))
    cache = str(tmp_path / "cache" / "prefixes")
    facts, tokens = run(tmp_path / "fixed", generate, provider, n_ctx=128, cache_dir=cache)
    notes = [facts.metadata[f"note.{i}"] for i in range(2)]
    print(notes)
    assert not any("rest CPU" in note for note in notes)
    assert len(list((tmp_path / "cache" / "qnn").rglob("*_qnn.bin"))) == 2
    again, same = run(tmp_path / "fixed", generate, provider, n_ctx=128, cache_dir=cache)
    assert "compiled before" in again.metadata["note.0"]
    assert same == tokens


@pytest.mark.timeout(1800)
def test_a_fixed_encoder_runs_on_the_emulator_whole(tmp_path):
    """Set TESSERA_BERT to a GGUF file of an embedding model, such as all-MiniLM-L6-v2, to measure that one."""
    provider = "QNNExecutionProvider"
    if SITES[provider] not in os.environ:
        pytest.skip(f"set {SITES[provider]}")
    given = os.environ.get("TESSERA_BERT")
    source = Path(given) if given else write_bert(tmp_path / "bert.gguf")
    convert_gguf(source, tmp_path / "open")
    convert_gguf(source, tmp_path / "fixed", fixed=FixedOptions(context=64))
    _, expected = run(tmp_path / "open", embed)
    facts, found = run(tmp_path / "fixed", embed, provider)
    print(facts.metadata["note.0"], (expected * found).sum(axis=1))
    assert "rest CPU" not in facts.metadata["note.0"]
    assert ((expected * found).sum(axis=1) > 0.99).all()


HEARD = """
import sys, wave, zipfile, io
from pathlib import Path
from engine.runner.onnx.speech.child import FixedMoonshine
from engine.runner.onnx.speech.audio import read_sound
from engine.runner.onnx.speech.child import VoiceDetector, speech
folder, provider, name = Path(sys.argv[1]), sys.argv[2], sys.argv[3]
detector, model = VoiceDetector(folder / "silero_vad.onnx"), FixedMoonshine(folder, 2, provider=provider)
print(*model.notes, sep="\\n", file=sys.stderr)
sound = read_sound(Path(name).read_bytes())
for first, last in speech(detector.probabilities(sound), len(sound), model.longest_s):
    print(model.transcribe(sound[first:last])[0])
"""


@pytest.mark.timeout(3600)  # the emulator takes two minutes for ten seconds of sound
@pytest.mark.parametrize("recording", ["beckett", "two_cities"])
def test_speech_is_heard_whole_on_the_provider(tmp_path, provider, recording):
    """TESSERA_SPEECH: the folder of the speech model; TESSERA_RECORDINGS: one with its two recordings."""
    if "TESSERA_RECORDINGS" not in os.environ:
        pytest.skip("set TESSERA_SPEECH and TESSERA_RECORDINGS")
    fixed = tmp_path / "npu"
    convert = [sys.executable, "-m", "engine.runner.onnx.speech.convert", os.environ["TESSERA_SPEECH"], str(fixed)]
    subprocess.run([*convert, "12"], env={**os.environ, "PYTHONPATH": str(Path.cwd())}, check=True, timeout=100)
    sound = str(Path(os.environ["TESSERA_RECORDINGS"]) / f"{recording}.wav")
    heard = {}
    for name in ("cpu", provider):
        site = os.environ[SITES[provider]] if name == provider else ""
        env = {**os.environ, "PYTHONPATH": f"{site}{os.pathsep}{Path.cwd()}"}
        command = [sys.executable, "-c", HEARD, str(fixed), name, sound]
        done = subprocess.run(command, env=env, capture_output=True, timeout=3000, text=True)
        assert done.returncode == 0, done.stderr
        print(done.stderr, done.stdout)
        heard[name] = done.stdout
    assert heard[provider] == heard["cpu"]


@pytest.mark.timeout(900)
@pytest.mark.parametrize("form", ["a8w8", "a16w8"])
def test_quark_writes_the_form_for_amds_npus(tmp_path, form):
    """TESSERA_QUARK_PYTHON: the Python of an environment with amd-quark, onnxruntime and torch."""
    if "TESSERA_QUARK_PYTHON" not in os.environ:
        pytest.skip("set TESSERA_QUARK_PYTHON")
    done = export(write_bert(tmp_path / "bert.gguf"), tmp_path / "amd", tokens=32, form=form)
    graph = onnx.load(str(tmp_path / "amd" / "model.onnx")).graph
    print(done, {node.op_type for node in graph.node})
    assert any("QuantizeLinear" in node.op_type for node in graph.node)
    assert all(d.dim_value > 0 for v in graph.input for d in v.type.tensor_type.shape.dim)
