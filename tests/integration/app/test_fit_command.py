"""`tessera fit` as used by people and by programs."""

import json
from pathlib import Path

import gguf
import numpy as np
import pytest
from click.testing import CliRunner

from app.cli.main import cli
from app.format import size
from devices.errors import InputFault
from engine.core.paths import user_paths
from engine.placement.model_settings import open_model_settings
from quantize.ggml_types import GgmlType
from tests.support.fakes.fake_hub import FakeHub
from tests.support.machines.machines import machines
from tests.support.models.fake_models import remote_gguf

ROOT = Path(__file__).resolve().parents[3]
SPARK = str(ROOT / "assets/models/spark-f16.gguf")


@pytest.fixture(autouse=True)
def home(tmp_path, monkeypatch):
    monkeypatch.setenv("TESSERA_HOME", str(tmp_path / "home"))


@pytest.fixture
def small_machine(tmp_path):
    recording = machines()["vm-firecracker"]
    recording["files"]["/proc/meminfo"] = f"MemTotal: {2 << 20} kB\nMemAvailable: {620 << 10} kB\n"
    path = tmp_path / "small.json"
    path.write_text(json.dumps(recording), encoding="utf-8")
    return str(path)


def run(*arguments):
    return CliRunner().invoke(cli, ["fit", *arguments])


def test_an_unknown_device_is_refused():
    refused = run(SPARK, "--device", "toaster")
    assert refused.exit_code != 0
    assert "'toaster' is not a device here; use one of " in str(refused.exception)
    assert run(SPARK, "--device", "cpu").exit_code == 0


def test_the_bundled_model_fits_and_every_part_is_shown():
    shown = run(SPARK)
    assert shown.exit_code == 0
    for word in ("fits on", "weights", "kv", "compute", "overhead", "fits: 1024 tokens", "4 requests at once"):
        assert word in shown.output


def test_more_context_than_it_was_trained_for_is_no_contradiction():
    shown = run(SPARK, "--ctx", "4096", "--parallel", "1")
    assert "context 4096 tokens, 1 request at once" in shown.output
    assert "trained for a context of 1024 tokens" in shown.output
    assert "Largest context that fits" not in shown.output


def test_by_name_as_json():
    told = json.loads(run("spark-f16", "--ctx", "512", "--kv", "q8_0", "--parallel", "2", "--json").output)
    assert told["fits"] is True
    assert told["need"]["n_ctx"] == 512
    assert told["need"]["type_k"] == "q8_0"
    assert told["placement"]["settings"]["n_parallel"] == 2
    assert told["needed_bytes"]["cpu"] == sum(p["num_bytes"] for p in told["need"]["parts"])


def test_what_does_not_fit_ends_with_ways_out(small_machine):
    shown = run(SPARK, "--ctx", "65536", "--from", small_machine)
    assert shown.exit_code == 1
    assert "does not fit" in shown.output
    assert "To make it fit" in shown.output
    assert "--ctx" in shown.output
    assert "tok/s" not in shown.output
    assert "forecast" not in shown.output


@pytest.fixture
def hub(monkeypatch):
    for name in ("HF_HUB_OFFLINE", "HF_TOKEN"):
        monkeypatch.delenv(name, raising=False)
    with FakeHub() as running:
        monkeypatch.setenv("HF_ENDPOINT", running.endpoint)
        kinds = {"Q4_K_M": (GgmlType.Q4_K, 15), "Q8_0": (GgmlType.Q8_0, 7), "BF16": (GgmlType.BF16, 32)}
        files = {f"big-{name}.gguf": remote_gguf(*kind, tokens=3000) for name, kind in kinds.items()}
        running.add("org/Big-GGUF", files)
        yield running


@pytest.fixture
def machine_of(tmp_path):
    def write(gib):
        recording = machines()["vm-firecracker"]
        recording["files"]["/proc/meminfo"] = f"MemTotal: {gib << 20} kB\nMemAvailable: {gib << 20} kB\n"
        path = tmp_path / f"{gib}.json"
        path.write_text(json.dumps(recording), encoding="utf-8")
        return str(path)

    return write


def test_a_repository_is_judged_from_its_headers_alone(hub, machine_of):
    told = json.loads(run("org/Big-GGUF:Q8_0", "--ctx", "4096", "--from", machine_of(64), "--json").output)
    assert told["fits"] is True
    parts = {part["name"]: part["num_bytes"] for part in told["need"]["parts"]}
    size = len(hub.repos["org/Big-GGUF"].files["big-Q8_0.gguf"].data)
    assert 0.95 * size < parts["weights"] <= size
    assert parts["kv"] == 36 * 4096 * 2 * 1024 * 2  # layers, cells, K and V, 8 heads of 128, f16
    assert hub.sent_bytes < size / 100


def test_without_a_quantization_the_best_for_that_machine_is_judged(hub, machine_of):
    sizes = {name: len(file.data) for name, file in hub.repos["org/Big-GGUF"].files.items()}

    def weights(gib):
        told = json.loads(run("org/Big-GGUF", "--ctx", "2048", "--from", machine_of(gib), "--json").output)
        return sum(part["num_bytes"] for part in told["need"]["parts"] if part["name"] == "weights")

    assert weights(64) == pytest.approx(sizes["big-Q4_K_M.gguf"], rel=0.05)  # higher quality is not measurable
    refused = run("org/Big-GGUF:BF16", "--from", machine_of(12))
    assert refused.exit_code == 1
    assert "tessera models pull org/Big-GGUF --plan" in refused.output


def test_a_repository_that_is_not_there_is_one_sentence(hub):
    shown = run("org/absent")
    assert shown.exit_code not in {0, None}
    assert "Traceback" not in shown.output


def test_a_projector_counts(tmp_path):
    projector = tmp_path / "mmproj.gguf"
    writer = gguf.GGUFWriter(projector, "clip")
    writer.add_tensor("v.patch_embd.weight", np.zeros((1024, 1280), np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    told = json.loads(run(SPARK, "--projector", str(projector), "--json").output)
    needed = sum(p["num_bytes"] for p in told["need"]["parts"] if p["name"] == "projector")
    assert needed == pytest.approx(1.2 * projector.stat().st_size, abs=1)
    assert told["needed_bytes"]["cpu"] == sum(p["num_bytes"] for p in told["need"]["parts"])
    missing = run(SPARK, "--projector", str(tmp_path / "none"))
    assert missing.exit_code != 0


@pytest.mark.parametrize("content", [b"", b"\0" * 5000, Path(SPARK).read_bytes()], ids=["empty", "zeros", "model"])
def test_a_file_that_is_no_projector_is_refused(tmp_path, content):
    file = tmp_path / "mmproj.gguf"
    file.write_bytes(content)
    refused = run(SPARK, "--projector", str(file))
    assert isinstance(refused.exception, InputFault)
    assert "mmproj.gguf is not a vision projector" in str(refused.exception)


@pytest.mark.parametrize("path", ["none.gguf", ".", "loop.gguf"])
def test_a_path_without_a_file_is_not_taken_for_a_repository(tmp_path, path):
    (tmp_path / "loop.gguf").symlink_to(tmp_path / "loop.gguf")
    refused = run(str(tmp_path / path))
    assert isinstance(refused.exception, InputFault)
    assert str(refused.exception).endswith(" is not a file.")


@pytest.mark.parametrize("arguments", [["none-such"], [SPARK, "--kv", "q9"], [SPARK, "--ctx", "0"]])
def test_mistakes_are_one_sentence(arguments):
    shown = run(*arguments)
    assert shown.exit_code not in {0, None}
    assert "Traceback" not in shown.output


def test_a_broken_file_is_refused(tmp_path):
    broken = tmp_path / "broken.gguf"
    broken.write_bytes(b"GGUF\x03\0\0\0" + b"\xff" * 64)
    shown = run(str(broken))
    assert shown.exit_code != 0


@pytest.mark.parametrize(
    ("num_bytes", "words"),
    [(None, "unknown"), (0, "0 B"), (2048, "2 KiB"), (7 << 20, "7.0 MiB"), (200 << 30, "200 GiB")],
)
def test_sizes(num_bytes, words):
    assert size(num_bytes) == words


def test_the_header_of_a_file_is_enough(tmp_path):
    whole = json.loads(run(SPARK, "--json").output)
    head = tmp_path / "head.gguf"
    head.write_bytes(Path(SPARK).read_bytes()[:300_000])
    told = json.loads(run(str(head), "--json").output)
    for name in ("weights", "kv"):
        sizes = [sum(p["num_bytes"] for p in t["need"]["parts"] if p["name"] == name) for t in (told, whole)]
        assert sizes[0] == sizes[1], name
    assert told["notes"] == ["only 300,000 of its 17,063,648 bytes are here; this is what the whole file needs"]
    head.write_bytes(Path(SPARK).read_bytes()[:3000])
    cut = run(str(head))
    assert isinstance(cut.exception, InputFault)
    assert str(cut.exception).count(str(head)) == 1
    assert "it ends after 3,000 bytes, within its header" in str(cut.exception)


def test_a_well_known_model_needs_no_file():
    told = json.loads(run("--shape", "Llama3.1-8B", "--type", "q4_k_m", "--ctx", "131072", "--json").output)
    weights = sum(p["num_bytes"] for p in told["need"]["parts"] if p["name"] == "weights")
    assert weights == pytest.approx(4.92e9, rel=0.02), "as the published file"
    cache = sum(p["num_bytes"] for p in told["need"]["parts"] if p["name"] == "kv")
    assert cache == 32 * 131072 * 2 * 8 * 128 * 2  # layers, tokens, keys and values, heads, head size, F16
    assert "llama3.1-8b" in run("--shape", "list").output.splitlines()
    for wrong in (
        ("--shape", "nosuch"),
        ("--shape", "qwen3-8b", "--type", "Q9"),
        (),
        (SPARK, "--shape", "qwen3-8b"),
    ):
        assert run(*wrong).exit_code != 0


def test_a_folder_is_not_taken_for_a_repository(tmp_path, monkeypatch):
    (tmp_path / "owner" / "name").mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    refused = run("owner/name")
    assert isinstance(refused.exception, InputFault)
    assert str(refused.exception) == "owner/name is not a file."


def test_an_alias_is_a_name_here_too():
    assert CliRunner().invoke(cli, ["models", "alias"]).exit_code == 0
    open_model_settings(user_paths()).set_alias("team/Fast-One", "spark")
    for command in (
        ["fit", "team/fast-one"],
        ["models", "show", "team/fast-one"],
        ["models", "sampling", "team/fast-one"],
    ):
        assert CliRunner().invoke(cli, command).exit_code == 0, command
