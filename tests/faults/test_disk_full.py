"""A disk that is really full: a small tmpfs in a separate mount namespace."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.fakes.fake_hub import FakeHub

SPARK = Path("assets/models/spark-f16.gguf")

PULL = """
import shutil, sys
from engine.jobs.jobs import JobContext
from engine.library.catalogue import Catalogue
from engine.library.errors import NotEnoughDisk
from engine.library.hub.client import HubClient
from engine.library.hub import download
from engine.library.hub.repository import choices_of
download._RESERVE_BYTES = -10**12  # let it begin although there is no room
client, catalogue = HubClient(sys.argv[1]), Catalogue()
repository = client.repository("org/Spark-GGUF")
request = download.Request(repository, choices_of(repository)[0].files)
try:
    download.Download(client, catalogue, request).run(JobContext())
except NotEnoughDisk as error:
    print("full", error.needed_bytes > 0, [e.id for e in catalogue.entries()])
shutil.rmtree(catalogue.paths.models / "ballast")
print("then", download.Download(client, catalogue, request).run(JobContext()).state)
"""


def can_mount():
    probe = ["unshare", "-rm", "true"]
    return bool(shutil.which("unshare")) and not subprocess.run(probe, capture_output=True, check=False).returncode


@pytest.mark.skipif(not can_mount(), reason="needs unshare and user namespaces (Linux)")
def test_enospc_in_a_download_keeps_the_list_and_resumes(tmp_path):
    models = tmp_path / "home" / "models"
    models.mkdir(parents=True)
    environment = {**os.environ, "TESSERA_HOME": str(tmp_path / "home"), "HF_TOKEN": "", "NO_PROXY": "127.0.0.1"}
    environment["PYTHONPATH"] = str(Path.cwd())
    script = (
        f"mount -t tmpfs -o size=24m none {models} && mkdir {models}/ballast && "
        f'head -c 12m /dev/zero > {models}/ballast/zero && exec {sys.executable} -c "$0" $1'
    )
    with FakeHub() as hub:
        hub.add("org/Spark-GGUF", {"spark-F16.gguf": SPARK.read_bytes()})
        command = ["unshare", "-rm", "sh", "-c", script, PULL, hub.endpoint]
        result = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=110, check=False)
    assert result.stdout.splitlines() == ["full True ['spark']", "then online"], result.stderr
