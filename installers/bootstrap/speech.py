"""The speech model, Moonshine tiny, and Silero's voice activity detector: files of two locked wheels, verified.

A server downloads them with: python -m installers.bootstrap.speech PYTHON LOCK FOLDER
"""

import contextlib
import hashlib
import os
import shutil
import sys
import tempfile
import zipfile

from installers.bootstrap import model

# Name in the installation: (end of the path in the wheel, bytes, SHA-256). Only these files are extracted; the
# wheels are not installed.
FILES = {
    "encoder_model.ort": (
        "tiny-en/encoder_model.ort",
        13_238_168,
        "e091ae52fc2a912197af8f7b7ae2e8365b656ff58463313e0660cce59d9e81d3",
    ),
    "decoder_model_merged.ort": (
        "tiny-en/decoder_model_merged.ort",
        58_327_168,
        "b40193912d8f4af041f2f3e9f7ff23d45b63a1c15a9c7d35fcbebeab3c4273b2",
    ),
    "tokenizer.bin": (
        "tiny-en/tokenizer.bin",
        249_974,
        "6884b35fd6377d4c4d32336a0bc152f36b64d1e45b6503683cdc238250a8472d",
    ),
    "silero_vad.onnx": (
        "data/silero_vad_16k_op15.onnx",
        1_289_603,
        "7ed98ddbad84ccac4cd0aeb3099049280713df825c610a8ed34543318f1b2c49",
    ),
}
# The first wheel is for Linux; its model files are identical for every system.
ANY_SYSTEM = ("--platform", "manylinux_2_35_x86_64", "--implementation", "py", "--abi", "none")


def folder(venv: str) -> str:
    """Folder of an installation's speech model; engine/core/paths.py reads it."""
    return os.path.join(venv, "share", "tessera", "speech")


def is_here(venv: str) -> bool:
    """Return whether all files exist and are correct."""
    return all(_is_right(os.path.join(folder(venv), name), name) for name in FILES)


def fetch(python: str, lock: str, venv: str, wheels: "str | None" = None) -> str:
    """Install the verified files; returns their folder. Raises: RuntimeError: see `fetch_into`."""
    return fetch_into(folder(venv), python, lock, wheels)


def fetch_into(place: str, python: str, lock: str, wheels: "str | None" = None) -> str:
    """Store the verified files in this folder and return it.

    Raises: RuntimeError: no index responded, or a file is not the pinned one; nothing is stored then.
    """
    os.makedirs(place, exist_ok=True)
    work = tempfile.mkdtemp(prefix="fetch-", dir=place)
    try:
        if wheels is None:
            model.download(python, lock, work, None, ANY_SYSTEM)
        source = wheels or work
        names = sorted(name for name in os.listdir(source) if name.endswith(".whl"))
        for name in FILES:
            _take_out([os.path.join(source, wheel) for wheel in names], name, os.path.join(work, name))
        for name in FILES:
            os.replace(os.path.join(work, name), os.path.join(place, name))
    except (OSError, zipfile.BadZipFile) as error:
        raise RuntimeError(f"the speech model could not be stored: {error}") from error
    finally:
        shutil.rmtree(work, ignore_errors=True)
    return place


def _take_out(wheels: "list[str]", name: str, part: str) -> None:
    end, size, _ = FILES[name]
    for path in wheels:
        with zipfile.ZipFile(path) as archive:
            member = next((m for m in archive.infolist() if m.filename.endswith(end) and m.file_size == size), None)
            if member is None:
                continue
            with archive.open(member) as source, open(part, "wb") as target:
                shutil.copyfileobj(source, target, 1 << 20)
        if _is_right(part, name):
            return
    raise RuntimeError(f"{name} with SHA-256 {FILES[name][2][:12]}… is in none of the wheels")


def _is_right(path: str, name: str) -> bool:
    with contextlib.suppress(OSError):
        if os.path.getsize(path) == FILES[name][1]:
            with open(path, "rb") as file:
                return hashlib.file_digest(file, "sha256").hexdigest() == FILES[name][2]
    return False


if __name__ == "__main__":
    try:
        fetch_into(sys.argv[3], sys.argv[1], sys.argv[2])
    except RuntimeError as error:
        sys.stderr.write(f"{error}\n")
        sys.exit(1)
