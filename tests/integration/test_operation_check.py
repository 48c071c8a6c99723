"""Operations one by one: the CPU against itself is right, and an altered value is reported by name."""

import json
import math
import subprocess
import sys

import msgspec
import numpy as np
import pytest

from devices.child_command import child_command
from engine.runner.llama.native.operation_check import Operation, relative_error, wrong_text
from engine.runner.protocol import LoadSettings
from tests.support.models.shapes import shallow, write_shape

# Loads a model on the CPU with the check as its callback. Argument 2 alters one kind of result between the device's
# computation and the comparison, like a wrong kernel.
SCRIPT = """
import ctypes, json, sys
from engine.runner.llama.native import operation_check
from engine.runner.llama.native.llama_api import start_backends
from engine.runner.llama.operations_child import compare
from engine.runner.protocol import LoadSettings
api, spoilt = start_backends(), sys.argv[2]
def spoil():
    read = operation_check.OperationCheck._compare
    def wrong(self, node):
        if self._kind(node) == spoilt and node.ne[1] == 1:
            value = ctypes.cast(node.data, ctypes.POINTER(ctypes.c_float))
            value[0] = float("nan") if spoilt == "RMS_NORM" else value[0] + 100
        return read(self, node)
    operation_check.OperationCheck._compare = wrong
if spoilt:
    spoil()
cache = sys.argv[3] if len(sys.argv) > 3 else "f16"
usual = {"n_ctx": 256, "n_parallel": 1, "n_threads": 1, "flash_attn": "on"}
found = compare(api, LoadSettings(path=sys.argv[1], type_k=cache, type_v=cache, **usual))
print(json.dumps({"wrong": operation_check.wrong_text(found), "kinds": [[o.kind, o.rows, o.wrong] for o in found]}))
"""


# The CPU as the device, compared with its own logits shifted by some hundredths of a nat. The model's other kernels
# differ as much, so the operations decide.
DOUBTED = (
    SCRIPT.partition("if spoilt:")[0]
    + """
import msgspec, numpy as np
from engine.runner.llama.native import device_check, device_verdict, model
from engine.runner.llama.native.vocabulary import LlamaVocabulary
device_verdict.wrong_operations.__defaults__ = (60.0,)  # a busy machine may come to nothing within the usual time
settings = LoadSettings(path=sys.argv[1], n_ctx=256, n_parallel=1, n_threads=1, flash_attn="on")
loaded = model.load(api, settings, lambda _fraction: True)
vocabulary = LlamaVocabulary(api, loaded.vocab)
expected = device_check.reference(loaded, vocabulary)
right = np.frombuffer(expected.logprobs, "<f4")
moved = right + np.random.default_rng(1).normal(0, .05, right.size)
noisy = {"logprobs": moved.astype("<f4").tobytes(), "noise_kld_mean": .05, "noise_kld_max": .5}
expected = msgspec.structs.replace(expected, **noisy)
if spoilt:
    spoil()
said = ""
try:
    found = device_verdict.checked(expected, loaded, vocabulary)
    doubtful = device_check.is_doubtful(found)
except device_check.DeviceWrong as error:
    said, doubtful = str(error), True
print(json.dumps({"said": said, "doubtful": doubtful}))
"""
)

# The CPU as a device whose 20th, 40th, … result is wrong: the comparison with the reference ends before that.
UNSTEADY = """
import json, sys
from engine.runner.llama.native import device_check, device_verdict, model
from engine.runner.llama.native.llama_api import start_backends
from engine.runner.llama.native.vocabulary import LlamaVocabulary
from engine.runner.protocol import LoadSettings
api = start_backends()
device_check.unsteadiness.__defaults__ = (60.0,)  # all its rounds, however little a busy machine gives it
settings = LoadSettings(path=sys.argv[1], n_ctx=256, n_parallel=1, n_threads=1, flash_attn="on")
loaded = model.load(api, settings, lambda _fraction: True)
vocabulary = LlamaVocabulary(api, loaded.vocab)
expected = device_check.reference(loaded, vocabulary)
calls, rows = 0, device_check.Logits.rows
def now_and_then(self, count):
    global calls
    calls += 1
    found = rows(self, count).copy()
    if sys.argv[2] and calls % 20 == 0:
        found[:, :9] += 4
    return found
device_check.Logits.rows = now_and_then
said = ""
try:
    device_verdict.checked(expected, loaded, vocabulary)
except device_check.DeviceWrong as error:
    said = str(error)
print(json.dumps({"said": said, "calls": calls}))
"""


def run(model, spoilt, script=SCRIPT, *more):
    argv = [sys.executable, "-c", script, str(model), spoilt, *more]
    done = subprocess.run(argv, capture_output=True, text=True, check=True, timeout=300)
    return json.loads(done.stdout.splitlines()[-1])


def test_where_noise_could_hide_a_fault_the_operations_decide(bundled_model):
    assert run(bundled_model, "", DOUBTED) == {"said": "", "doubtful": True}
    found = run(bundled_model, "GLU", DOUBTED)
    assert found["said"].endswith("computes something else than the CPU: gated activation (f32, one token)")


def test_a_fault_that_comes_now_and_then_is_seen_by_repeating(bundled_model):
    right, wrong = run(bundled_model, "", UNSTEADY), run(bundled_model, "now and then", UNSTEADY)
    assert right["said"] == ""
    assert "gives other numbers for the same tokens" in wrong["said"]


def test_the_processor_beside_itself_is_right_and_every_kind_is_seen(bundled_model):
    found = run(bundled_model, "")
    assert found["wrong"] == ""
    seen = {(kind, rows) for kind, rows, _ in found["kinds"]}
    for kind in ("MUL_MAT", "FLASH_ATTN_EXT", "RMS_NORM", "ROPE"):
        assert {(kind, "many")} & seen, kind
    assert ("MUL_MAT", "one") in seen


def test_a_cache_of_eight_bits_is_written_before_what_reads_it_is_compared(bundled_model):
    assert run(bundled_model, "", SCRIPT, "q8_0")["wrong"] == ""


@pytest.mark.parametrize(
    ("spoilt", "words"),
    [("GLU", "gated activation (f32, one token)"), ("RMS_NORM", "normalization (f32, one token)")],
)
def test_what_is_wrong_is_named_and_nothing_else(bundled_model, spoilt, words):
    found = run(bundled_model, spoilt)
    assert found["wrong"] == words
    assert {kind for kind, _, wrong in found["kinds"] if wrong} == {spoilt}


def test_the_child_answers_a_file_it_cannot_load(tmp_path):
    settings = LoadSettings(path=str(tmp_path / "none.gguf"))
    argv = child_command("engine.runner.llama.operations_child", msgspec.json.encode(settings).decode())
    done = subprocess.run(argv, capture_output=True, text=True, check=False, timeout=120)
    assert "error" in json.loads(done.stdout.splitlines()[-1])


def test_errors_are_relative_and_what_is_no_number_is_wrong():
    right = np.array([3.0, -4.0, -np.inf])
    assert relative_error(right, right.copy()) == 0
    assert relative_error(right, np.array([3.0, -4.5, -np.inf])) == pytest.approx(0.01)
    assert math.isnan(relative_error(right, np.array([3.0, np.nan, -np.inf])))
    assert math.isnan(relative_error(right, np.array([3.0, -4.0, 0.0])))
    zero = np.zeros(3)
    assert (relative_error(zero, zero), relative_error(zero, np.ones(3))) == (0, 1)


def test_the_worst_come_first_and_the_rest_is_counted():
    def made(kind, rows="many"):
        return Operation(kind=kind, weights="q4_K", rows=rows, count=1, error=1.0, wrong=True)

    found = [
        made("MUL_MAT", "one"),
        made("FLASH_ATTN_EXT"),
        made("FLASH_ATTN_EXT", "one"),
        made("ROPE"),
        made("GLU"),
    ]
    assert wrong_text(found) == (
        "matrix multiplication (q4_K, one token), flash attention, rotary positions (q4_K, several tokens) "
        "and 1 more"
    )
    assert wrong_text([]) == ""


def test_rearranged_weights_of_the_processor_are_passed_over(tmp_path):
    """Reading them back ends the process, as with layers or experts that stay on the CPU next to a GPU."""
    path = write_shape(tmp_path / "model.gguf", shallow("llama-q4_0"))
    found = run(path, "")
    assert found["wrong"] == ""
    assert "RMS_NORM" in {kind for kind, _, _ in found["kinds"]}
