"""Start llama.cpp's converter, in the environment made for it: SOURCE FOLDER OUT TYPE NAME, or SOURCE to try it.

No program of a model's publisher is run: whoever wants to load one fails.
"""

import runpy
import sys
from pathlib import Path


def refuse(*_given: object, **_named: object) -> None:
    """Takes the place of transformers' loader of other people's programs."""
    raise RuntimeError("the model needs a program of its publisher's, and no other code is run")


def main(source: str, *wanted: str) -> None:
    """Convert, or only import everything."""
    sys.path[:0] = [source, str(Path(source) / "gguf-py")]
    from transformers import dynamic_module_utils
    from transformers.models.auto import (
        auto_factory,
        configuration_auto,
        tokenization_auto,
    )

    for module in (dynamic_module_utils, auto_factory, configuration_auto, tokenization_auto):
        module.get_class_from_dynamic_module = refuse
    if not wanted:
        import conversion  # noqa: F401 - its packages are there
        import sentencepiece  # noqa: F401 - as above

        return
    folder, out, kind, name = wanted
    script = Path(source) / "convert_hf_to_gguf.py"
    sys.argv = [str(script), folder, "--outfile", out, "--outtype", kind, "--model-name", name]
    runpy.run_path(str(script), run_name="__main__")


if __name__ == "__main__":
    main(*sys.argv[1:])
