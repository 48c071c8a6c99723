"""The Devices page: the fix for a backend is copied, and a model that is in another folder is pinned here."""

import shutil

import pytest

from devices.backends.libraries import library_folder
from tests.support.fakes.ssh_hosts import SshHost, Worker
from tests.support.servers import wait_for

pytestmark = pytest.mark.timeout(400)  # a worker starts, on a busy computer
DEVICES = "window.page('devices')"
CLIPBOARD = "app.clipboard().text()"


@pytest.fixture(scope="module")
def walk(open_window, tmp_path_factory):
    """Kernels as installed, and a Vulkan library that is damaged."""
    folder = tmp_path_factory.mktemp("kernels")
    for file in library_folder().iterdir():
        if file.is_file():
            (folder / file.name).symlink_to(file)
    (folder / "libggml-vulkan.so").unlink(missing_ok=True)
    (folder / "libggml-vulkan.so").write_bytes(b"half a library")
    return open_window(env={"LLAMA_CPP_LIB_PATH": str(folder)})


def placed(walk):
    """The model's load state and its device."""
    models = walk.manage("loaded")["models"]
    return (models[0]["state"], models[0]["backend"] or "cpu") if models else None


def test_the_step_that_mends_a_backend_is_copied(walk):
    walk.go("Devices")
    walk.until(f"'Does not work' in says({DEVICES})", 400)
    walk.click("Copy", DEVICES)
    walk.until(f"'by hand to see its messages' in {CLIPBOARD} and 'vulkan' in {CLIPBOARD}")
    walk.picture("mend")


def test_a_model_on_another_computer_is_pinned_to_this_one(walk, tmp_path):
    keys = walk.home / "user" / ".ssh"
    keys.mkdir(mode=0o700)
    host, worker = SshHost(tmp_path), Worker(tmp_path)
    shutil.copy(host.identity, keys / "id_ed25519")
    try:
        added = {"host": "127.0.0.1", "user": "you", "port": host.port, "worker_port": worker.port}
        walk.manage("remotes/desk", {**added, "use": "pinned", "host_key": host.fingerprint}, "PUT")
        walk.manage("remotes/desk/check", {})
        walk.manage("models/spark/pin", {"device": "desk"})
        walk.go("Chat")
        walk.say("What is Tessera?")
        assert walk.ask("chat.controller.tree.path()[-1].status") == "complete"
        wait_for(lambda: placed(walk) == ("loaded", "RPC0"), 60, "its load over there")
        walk.go("Devices")
        walk.click("Pin: spark, CPU", DEVICES)
        walk.until(f"'will run on cpu/cpu' in {DEVICES}.banner.text")
        assert walk.manage("models/spark/placement")["pinned"] == "cpu/cpu"
        walk.find("Let Tessera choose: spark", DEVICES)
        walk.click("Source of each setting: spark", DEVICES)
        walk.until(f"' → ' in says({DEVICES})")
        walk.picture("pinned-here")
        wait_for(lambda: placed(walk) == ("loaded", "cpu"), 240, "its load on this computer")
    finally:
        worker.stop()
        host.stop()
