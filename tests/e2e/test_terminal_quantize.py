"""`tessera quantize` and `tessera onnx convert` with a server: jobs are watched and ended in the terminal."""

import json
import os
import signal
import subprocess
import sys
import time

import httpx2
import pytest

from tests.support.models.small_folder import small_file
from tests.support.servers import HEARS_INTERRUPTS, ROOT

SPARK = ROOT / "assets" / "models" / "spark-f16.gguf"
pytestmark = pytest.mark.e2e


def start(server, *arguments, **options):
    env = {**os.environ, "TESSERA_HOME": str(server.home)}
    command = [sys.executable, "-m", "app", *arguments]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    return subprocess.Popen(command, env={**env, "PYTHONPATH": str(ROOT)}, **HEARS_INTERRUPTS, **pipes, **options)


def jobs(server):
    headers = {"Authorization": f"Bearer {server.token}"}
    return httpx2.get(f"{server.url}/tessera/v1/jobs", headers=headers).json()["jobs"]


def of_kind(server, kind):
    return [job for job in jobs(server) if job["kind"] == kind]


def test_the_file_lies_where_it_was_wanted_and_the_server_knows_the_job(beside, tmp_path):
    source = small_file(tmp_path / "source.gguf", 2)
    options = ["--budget", "1200000B", "--tier", "instant", "--threads", "1", "--json"]
    # A path relative to a folder other than the server's.
    running = start(beside, "quantize", str(source), "small.gguf", *options, cwd=tmp_path)
    out, errors = running.communicate(timeout=110)
    assert running.returncode == 0, errors
    report = json.loads(out)
    assert report["file_bytes"] == (tmp_path / "small.gguf").stat().st_size
    job = of_kind(beside, "quantize")[0]
    assert (job["state"], job["title"]) == ("done", source.name)
    assert job["result"]["model"] == "", "a file elsewhere does not join the library"


def test_what_a_linked_model_became_is_in_the_library(beside, tmp_path):
    source = small_file(tmp_path / "elsewhere.gguf", 2)
    linked = start(beside, "models", "link", str(source), "--json")
    (name,) = json.loads(linked.communicate(timeout=60)[0])["added"]
    running = start(beside, "quantize", name, "--budget", "1200000B", "--tier", "instant", "--threads", "1")
    out, errors = running.communicate(timeout=110)
    assert running.returncode == 0, errors
    made = of_kind(beside, "quantize")[0]["result"]
    assert f"use it: tessera chat {made['model']}\n" in out
    listed = json.loads(start(beside, "models", "list", "--json").communicate(timeout=60)[0])["models"]
    assert made["path"] in {model["files"][0]["path"] for model in listed if model["id"] == made["model"]}


def interrupted(server, running, when, number=signal.SIGINT):
    """Send Ctrl-C, or another signal, as soon as the job is in that state; returns the output."""
    deadline = time.monotonic() + 90
    while not any(j["state"] == "running" and when(j["progress"]) for j in of_kind(server, "quantize")):
        assert running.poll() is None, running.communicate()
        assert time.monotonic() < deadline
        time.sleep(0.1)
    running.send_signal(number)
    try:
        return running.communicate(timeout=60)
    except subprocess.TimeoutExpired:
        running.send_signal(signal.SIGABRT)  # its traceback shows where it hangs
        pytest.fail(f"{of_kind(server, 'quantize')}\n{running.communicate()}")


def test_an_ended_command_cancels_its_job_and_leaves_no_file(beside, tmp_path):
    out = tmp_path / "never.gguf"
    # so few bytes that there is no first version without measurements
    options = ("--budget", "3050000B", "--lock", "output=Q4_K", "--tier", "max", "--threads", "1")
    running = start(beside, "quantize", str(SPARK), str(out), *options)
    _, errors = interrupted(beside, running, lambda progress: progress["phase"])
    assert running.returncode == 130, errors
    assert errors.strip().endswith("Cancelled.")
    assert "Traceback" not in errors
    assert of_kind(beside, "quantize")[0]["state"] == "cancelled"
    assert not out.exists()


def test_an_ended_command_keeps_the_first_version_of_its_file(beside, tmp_path):
    out = tmp_path / "first.gguf"
    source = small_file(tmp_path / "source.gguf", 2)
    options = ("--budget", "1200000B", "--tier", "max", "--threads", "1")
    running = start(beside, "quantize", str(source), str(out), *options)
    said, errors = interrupted(beside, running, lambda progress: progress["partial"].get("usable"))
    assert running.returncode == 130, errors
    assert "stopped early" in said
    assert "Traceback" not in errors
    job = of_kind(beside, "quantize")[0]
    assert (job["state"], job["result"]["path"]) == ("done", str(out))
    assert job["result"]["report"]["stopped"] in {"unmeasured", "uncompared"}
    assert job["result"]["report"]["file_bytes"] == out.stat().st_size


def test_a_killed_command_says_how_to_follow_and_cancel_its_job(beside, tmp_path):
    options = ("--budget", "3050000B", "--lock", "output=Q4_K", "--tier", "max", "--threads", "1")
    running = start(beside, "quantize", str(SPARK), str(tmp_path / "never.gguf"), *options)
    _, errors = interrupted(beside, running, lambda progress: progress["phase"], signal.SIGTERM)
    assert running.returncode == 128 + signal.SIGTERM, errors
    job = of_kind(beside, "quantize")[0]
    assert job["state"] == "running"
    assert errors.strip().endswith(
        f"Follow it: tessera jobs follow {job['id']}. Cancel it: tessera jobs cancel {job['id']}."
    )
    listed = start(beside, "jobs").communicate(timeout=60)[0]
    assert listed.splitlines()[0].startswith(f"{job['id']}\trunning")
    cancelled = start(beside, "jobs", "cancel", job["id"])
    out, errors = cancelled.communicate(timeout=60)
    assert (cancelled.returncode, out.split("\t")[0]) == (0, job["id"]), errors
    followed = start(beside, "jobs", "follow", job["id"]).communicate(timeout=60)[0]
    assert followed.startswith(f"{job['id']}\tcancelled")
    unknown = start(beside, "jobs", "follow", "quantize-none")
    assert "There is no job 'quantize-none'." in unknown.communicate(timeout=60)[1]


def test_a_relative_path_over_http_is_refused(beside):
    headers = {"Authorization": f"Bearer {beside.token}"}
    quantize = {"model": "spark", "mix": "Q4_K_M"}
    for path, body in (
        *(("quantize", {**quantize, field: "there"}) for field in ("out", "calibration", "imatrix", "export_plan")),
        ("quantize/plan", {"model": "spark", "plan_file": "there.json"}),
        ("models/convert", {"source": "folder"}),
        ("onnx/convert", {"source": "spark", "out": "there"}),
    ):
        answer = httpx2.post(f"{beside.url}/tessera/v1/{path}", json=body, headers=headers)
        assert answer.status_code == 400, answer.text
        assert "whole path" in answer.text


def test_an_onnx_folder_is_made_by_the_server(beside):
    running = start(beside, "onnx", "convert", "spark", "--json")
    out, errors = running.communicate(timeout=110)
    assert running.returncode == 0, errors
    made = json.loads(out)
    job = of_kind(beside, "convert")[0]
    assert job["state"] == "done"
    assert job["result"]["model"] == made["model"]
    headers = {"Authorization": f"Bearer {beside.token}"}
    listed = httpx2.get(f"{beside.url}/tessera/v1/models", headers=headers).json()["models"]
    assert made["model"] in {model["id"] for model in listed}


def test_layers_on_the_gpu_are_taken_as_asked_and_told_with_the_plan(beside):
    headers = {"Authorization": f"Bearer {beside.token}"}
    url = f"{beside.url}/tessera/v1/quantize/plan"

    def plan(**fields):
        body = {"model": "spark", "tier": "instant", "budget_bytes": 5_000_000, **fields}
        return httpx2.post(url, json=body, headers=headers, timeout=60)

    assert plan(gpu_layers=3).json()["gpu_layers"] == 3
    assert plan(gpu_layers=0).json()["gpu_layers"] == 0
    assert plan(gpu_layers=-1).status_code == 400
