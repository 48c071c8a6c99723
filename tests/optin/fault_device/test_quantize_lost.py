"""A GPU is lost in the middle of a quantization: reported, nothing stored, and the next run works without it.

Opt-in: `python -m pytest tests/optin/fault_device/test_quantize_lost.py`. Needs g++. The device computes with the
CPU's own kernels, so what was measured before the loss has the same bits as in a run without the device.
"""

import hashlib
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
sys.path.insert(0, str(ROOT))

from quantize.child import Child, ChildDied
from quantize.files.gguf_file import read_gguf
from quantize.job.execute import quantize
from quantize.job.request import QuantizeRequest
from quantize.native.eval_context import LoadFailed
from quantize.types import SizeTarget
from tests.optin.fault_device.plugin import build
from tests.support.models.measured_model import HELD_OUT, ignore, never
from tests.support.models.small_folder import first_layers, short_text

pytestmark = pytest.mark.timeout(1800)
ALL_LAYERS = 99
# The tasks that evaluate the model, and the number of results before the device is lost: none of the first
# window's, some of a later one's. A survey evaluates 32 tokens of one layer.
LOSSES = [("survey", 4), ("moments", 200), ("alpha", 200), ("verify", 200)]


def request(folder: Path, source: Path, **changes) -> QuantizeRequest:
    facts = {
        "source": source,
        "out": folder / "out.gguf",
        "goal": SizeTarget(kind="bpw", bpw=4.4),
        "calibration": short_text(folder / "text.txt"),
        "held_out": HELD_OUT,
        "cache_dir": folder / "cache",
        "threads": 2,
        "verify_tokens": 4096,
        "gpu_layers": ALL_LAYERS,
    }
    return QuantizeRequest(**(facts | changes))


def left(folder: Path) -> set[str]:
    return {p.name for p in folder.iterdir()} - {"source", "text.txt", "cache"}


def weights(path: Path) -> dict[str, str]:
    """Hashes of the tensors; the file's metadata include figures of the evaluations that found its recipe."""
    file = read_gguf(path)
    return {t.name: hashlib.sha256(file.tensor_bytes(t)).hexdigest() for t in file.tensors}


@pytest.mark.parametrize("mode", ["fail", "abort"])
def test_a_gpu_lost_at_every_phase_is_told_and_the_next_run_goes_on_without_it(tmp_path, monkeypatch, mode):
    """Like drivers: an evaluation that reports failure, and a library that ends its process."""
    plugin = build(ROOT / "build" / "fault_device")
    source = first_layers(tmp_path / "source", 1)
    started = Child.__init__
    victim, computed = "", set()

    def start(self, task, wanted):
        with monkeypatch.context() as here:
            here.setenv("GGML_BACKEND_PATH", str(plugin))
            after = dict(LOSSES).get(task)
            if after is not None and task == victim:
                here.setenv("GGML_FAULT_DEVICE", f"mode={mode};after={after}")
            started(self, task, wanted)
        computed.add(task)

    monkeypatch.setattr(Child, "__init__", start)
    wanted = request(tmp_path, source)
    for victim, _ in LOSSES:
        error, words = (LoadFailed, "could not") if mode == "fail" else (ChildDied, f"the {victim} process ended")
        with pytest.raises(error, match=words):
            quantize(wanted, ignore, never)
        assert victim in computed
        assert left(tmp_path) == set(), victim
        assert not list((tmp_path / "cache").rglob("*.partial")), victim
    monkeypatch.setattr(Child, "__init__", started)

    plain = tmp_path / "plain"
    plain.mkdir()
    made = quantize(request(tmp_path, source, gpu_layers=0), ignore, never)
    undisturbed = quantize(request(plain, source, gpu_layers=0), ignore, never)

    assert made.shipped == undisturbed.shipped == "ours"
    assert made.plan.types == undisturbed.plan.types
    assert weights(tmp_path / "out.gguf") == weights(plain / "out.gguf")


def test_gpu_and_processor_measure_the_same(tmp_path, monkeypatch):
    plugin = build(ROOT / "build" / "fault_device")
    source = first_layers(tmp_path / "source", 1)
    # Of one layer most is the table, which stock mixes keep in 6 bits: with fewer there is none to compare with.
    roomy = SizeTarget(kind="bpw", bpw=7.0)
    alone = quantize(request(tmp_path, source, goal=roomy, gpu_layers=0), ignore, never)
    monkeypatch.setenv("GGML_BACKEND_PATH", str(plugin))
    other = tmp_path / "gpu"
    other.mkdir()

    found = quantize(request(other, source, goal=roomy), ignore, never)

    assert (alone.gpu_layers, found.gpu_layers) == (0, ALL_LAYERS)
    for one, two in ((alone.ours, found.ours), (alone.stock, found.stock)):
        assert one.kld_mean.low <= two.kld_mean.value <= one.kld_mean.high
        assert two.kld_mean.low <= one.kld_mean.value <= two.kld_mean.high
