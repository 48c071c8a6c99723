"""Tasks done in folders with nothing but their parcel give the same bytes as a local job."""

import msgspec
import numpy as np
import pytest

from quantize.child import Executor, described, rebuilt
from quantize.errors import BadFile
from quantize.files.gguf_file import read_gguf
from quantize.files.imatrix import Importance, write_imatrix
from quantize.gptq.tensors import TensorsRequest
from quantize.job.execute import quantize
from quantize.job.remote_task import Parcel, pack, perform, unpack
from quantize.job.request import QuantizeRequest
from quantize.measurements import MeasureRequest, Progress, RoundRequest
from quantize.types import SizeTarget
from tests.support.models.measured_model import HELD_OUT, SOURCE, ignore, never
from tests.support.models.small_folder import NARROW, first_layers, short_text, small_file

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600), pytest.mark.usefixtures("kept", "three_types")]


class Elsewhere:
    """Runs each task in a separate empty folder, after serializing its parcel."""

    def __init__(self, folder):
        self.folder, self.done = folder, []

    def run(self, tasks, on_progress, cancelled):
        for index, task in enumerate(tasks):
            parcel, source, read = pack(task)
            parcel = msgspec.json.decode(msgspec.json.encode(parcel), type=Parcel)
            room = self.folder / str(len(self.done))
            room.mkdir(parents=True)
            unpack(task, perform(parcel, source, {n: np.fromfile(p, np.uint8) for n, p in read.items()}, room))
            self.done.append((parcel.task, parcel.results))
            on_progress(index, Progress(phase=parcel.task, done=parcel.work, total=parcel.work))


@pytest.fixture(scope="module")
def request_for(tmp_path_factory):
    folder = tmp_path_factory.mktemp("parcels")
    return QuantizeRequest(
        source=first_layers(folder / "source", 1, NARROW),
        out=folder / "home.gguf",
        goal=SizeTarget(kind="bpw", bpw=5.0),
        calibration=short_text(folder / "text.txt", 8_000),
        held_out=HELD_OUT,
        cache_dir=folder / "home-cache",
        threads=2,
        probe_tokens=512,
        verify=False,
    )


def both(request, tmp_path, **changes):
    """Run the job locally and elsewhere, compare the files; return the tasks done elsewhere."""
    home = msgspec.structs.replace(request, out=tmp_path / "home.gguf", cache_dir=tmp_path / "home", **changes)
    away = msgspec.structs.replace(request, out=tmp_path / "away.gguf", cache_dir=tmp_path / "away", **changes)
    elsewhere, shares = Elsewhere(tmp_path / "rooms"), []
    quantize(home, ignore, never)
    quantize(away, lambda p: shares.append(p.share or 0.0), never, Executor(elsewhere.run, 1 << 30))
    assert home.out.read_bytes() == away.out.read_bytes()
    assert shares == sorted(shares)
    return elsewhere.done


def test_a_mix_that_is_measured_and_rounded(request_for, tmp_path):
    done = both(request_for, tmp_path)

    assert {task for task, _ in done} == {"errors", "round"}
    rounded = [names for task, names in done if task == "round"]
    assert all(len(names) == 1 for names in rounded)  # one task per tensor
    assert len({n for (n,) in rounded}) == len(rounded)
    evidence = [sorted((tmp_path / side).rglob("errors/*.json")) for side in ("home", "away")]
    assert [p.name for p in evidence[0]] == [p.name for p in evidence[1]]
    assert all(a.read_bytes() == b.read_bytes() for a, b in zip(*evidence, strict=True))


def test_a_stock_mix_with_an_importance_matrix(request_for, tmp_path):
    source, matrix = small_file(tmp_path / "source.gguf", 2), tmp_path / "matrix.gguf"
    rng = np.random.default_rng(5)
    entries = {}
    for info in read_gguf(source).tensors:
        if len(info.shape) > 1:
            width = info.shape[0] if info.name != "blk.0.ffn_down.weight" else 32  # the width of another model
            entries[info.name] = Importance(rng.random((1, width), np.float32), np.ones(1, np.float32))
    write_imatrix(matrix, entries, "text", 512)
    done = both(
        request_for,
        tmp_path,
        source=source,
        goal=SizeTarget(kind="mix", mix="Q4_K_M"),
        tier="instant",
        imatrix=matrix,
    )

    tensors = [t for t in read_gguf(tmp_path / "home.gguf").tensors if t.ggml_type.name not in {"F32", "F16"}]
    assert len(done) == len(tensors)


def test_a_fault_elsewhere_is_the_fault_at_home(request_for, tmp_path):
    measure = MeasureRequest(source=SOURCE, calibration=request_for.calibration, cache_dir=tmp_path / "cache")
    info = next(t for t in read_gguf(SOURCE).tensors if t.name == "blk.0.ffn_up.weight")
    task = ("round", TensorsRequest(round=RoundRequest(measure=measure, types={info.name: "Q4_K"}, rounding="stock"), names=(info.name,)))  # fmt: skip  # noqa: E501
    parcel, source, read = pack(task)
    source[-info.nbytes :].view(np.float16)[7] = np.nan
    (tmp_path / "room").mkdir()
    with pytest.raises(BadFile, match=r"blk\.0\.ffn_up\.weight contains infinite values or NaN") as caught:
        perform(parcel, source, read, tmp_path / "room")
    again = rebuilt(msgspec.json.decode(msgspec.json.encode(described(caught.value))))
    assert type(again) is BadFile
    assert str(again) == str(caught.value)


@pytest.mark.parametrize("name", ["../away.bin", "hashes/x", "packed/../../away.bin", "groups.json", "/tmp/away"])
def test_results_stay_in_the_folder_of_the_cache(request_for, tmp_path, name):
    measure = MeasureRequest(source=SOURCE, calibration=request_for.calibration, cache_dir=tmp_path / "cache")
    task = ("round", TensorsRequest(round=RoundRequest(measure=measure, types={}), names=()))
    with pytest.raises(BadFile):
        unpack(task, {name: b"x"})
