"""Opt-in: compares devices in three pairs: the choice after measuring, the forecast, and the cost of measuring.

    python tests/optin/compare_places.py [--work FOLDER]

The pairs: the CPU and Mesa's software Vulkan device with the bundled pack; the CPU and a device of the fault
plugin that sleeps at every product, which forecasts take for a GPU; the CPU with one thread and software Vulkan.
Needs g++. Mesa's driver is unpacked below FOLDER from Debian packages; nothing is installed. A few minutes each.
"""

import argparse
import hashlib
import os
import sys
import tempfile
import time
from pathlib import Path

import httpx2
import msgspec

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from devices.backends.libraries import library_folder
from devices.kernel_packs.abi import headers_hash, installed_abi
from devices.kernel_packs.bundled import bundled_pack
from devices.kernel_packs.manifest import Manifest, PackFile, this_platform
from devices.kernel_packs.store import PackStore
from installers.packs.toolchain import environment, unpack_packages
from tests.optin.fault_device.plugin import build
from tests.support.servers import RunningServer

SLOW = {"GGML_FAULT_DEVICE": "mode=slow;op=MUL_MAT;amount=5"}


def fault_pack(work: Path) -> Path:
    """The fault plugin as a pack of a Vulkan backend."""
    data = build(work).read_bytes()
    folder = work / "pack"
    folder.mkdir(exist_ok=True)
    (folder / "libggml-vulkan.so").write_bytes(data)
    abi = installed_abi(library_folder())
    file = PackFile(name="libggml-vulkan.so", num_bytes=len(data), sha256=hashlib.sha256(data).hexdigest())
    found = Manifest(
        format=1, name="fault-device", version=abi.ggml_version, backend="vulkan", platform=this_platform(),
        ggml_version=abi.ggml_version, headers=headers_hash(library_folder().parent / "include"), files=(file,),
    )  # fmt: skip
    (folder / "manifest.json").write_bytes(msgspec.json.encode(found))
    return folder


def compare(pack: Path, env: dict[str, str], threads: int | None = None) -> dict:
    """The result of a comparison on a new server with that pack, and the decision of the next start."""
    with tempfile.TemporaryDirectory() as folder:
        home = Path(folder)
        store = PackStore(home / "kernels")
        store.use(store.add(pack))
        server = RunningServer(home, env=env)
        try:
            with httpx2.Client(
                base_url=server.url, headers={"Authorization": f"Bearer {server.token}"}, timeout=600
            ) as client:
                if threads:
                    client.put("/tessera/v1/models/spark/load-settings", json={"n_threads": threads})
                began = time.monotonic()
                job = client.post("/tessera/v1/bench/places", json={"model": "spark"}).json()
                while job["state"] in {"queued", "running"}:
                    time.sleep(0.5)
                    job = client.get(f"/tessera/v1/jobs/{job['id']}").json()
                assert job["state"] == "done", (job, server.log)
                result = {**job["result"]["comparison"], "seconds": round(time.monotonic() - began, 1)}
                placed = client.get("/tessera/v1/models/spark/placement").json()["placement"]
                assert f"{placed['device']}/{placed['backend']}" == result["after"]
                return {**result, "reasons": placed["reasons"]}
        finally:
            server.stop()


def main() -> None:
    """Compare all pairs and print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--work", type=Path, default=ROOT / "build" / "compare_places")
    work = parser.parse_args().work
    mesa = environment(unpack_packages(work, driver=True))
    names = ("LD_LIBRARY_PATH", "VK_DRIVER_FILES", "VK_ICD_FILENAMES")
    software = {name: mesa[name] for name in names} | {"GGML_VK_VISIBLE_DEVICES": "0"}
    vulkan, turned = bundled_pack("vulkan"), 0
    assert vulkan is not None
    pairs = {
        "CPU and software Vulkan": (vulkan, software, None),
        "CPU and a slow device": (fault_pack(work), SLOW, None),
        "one thread and software Vulkan": (vulkan, software, 1),
    }
    for name, (pack, env, threads) in pairs.items():
        found = compare(pack, env, threads)
        turned += found["before"] != found["after"]
        print(f"{name}: {found['before']} by forecast, {found['after']} by measurement, {found['seconds']} s")
        for place in found["places"]:
            where, took = f"{place['device']}/{place['backend']}", place["took_s"]
            speeds = f"reads {place['prefill_tok_s']:.0f}, writes {place['decode_tok_s']:.1f} tok/s"
            print(f"  {where}: {speeds}, took {took:.1f} s with loading")
        print(f"  {'; '.join(found['reasons'])}")
    assert turned, "the measurement should have turned at least one decision round"
    print(f"{os.cpu_count()} cores, {time.strftime('%Y-%m-%d')}")


if __name__ == "__main__":
    main()
