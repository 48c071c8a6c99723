"""A fake environment of llama.cpp's converter: this Python, and a script that a test writes.

The real one needs 1 GB of packages; tests/optin/llama_cpp_door.py installs and tests it.
"""

import shutil
import sys
from pathlib import Path

import msgspec

from engine.library.converter import environment

ROOT = Path(__file__).resolve().parents[3]
SPARK = ROOT / "assets" / "models" / "spark-f16.gguf"
SPARK_HF = ROOT / "tests" / "data" / "spark-hf"
# The last step of the real script: write a file to --outfile.
WRITES = """
import shutil, sys
from pathlib import Path
out = sys.argv[sys.argv.index("--outfile") + 1]
with open(Path(__file__).with_name("made.gguf"), "rb") as source, open(out, "wb") as target:
    shutil.copyfileobj(source, target)
"""


def stand_in(converter: Path, script: str = WRITES) -> Path:
    """Create it below `converter`; return the folder of its script, where WRITES finds `made.gguf`."""
    place = converter / environment._key()
    source = place / "llama.cpp"
    for module in ("transformers", "transformers/models", "transformers/models/auto"):
        (source / module).mkdir(parents=True)
        (source / module / "__init__.py").touch()
    (source / "transformers" / "dynamic_module_utils.py").touch()
    for name in ("auto_factory", "configuration_auto", "tokenization_auto"):
        (source / "transformers" / "models" / "auto" / f"{name}.py").touch()
    (source / "convert_hf_to_gguf.py").write_text(script)
    shutil.copyfile(SPARK, source / "made.gguf")
    python = environment._python_in(place)
    python.parent.mkdir()
    python.symlink_to(sys.executable)
    (place / "ready.json").write_bytes(msgspec.json.encode(environment._Ready(12345)))
    return source


def foreign_folder(folder: Path, architecture: str = "GraniteForCausalLM") -> Path:
    """A copy of Spark's folder with another architecture name."""
    shutil.copytree(SPARK_HF, folder)
    config = msgspec.json.decode((folder / "config.json").read_bytes())
    (folder / "config.json").write_bytes(msgspec.json.encode(config | {"architectures": [architecture]}))
    return folder
