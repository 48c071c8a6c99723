"""Runs llama.cpp's own converter on a folder, with a given pre-tokenizer. Needs torch and transformers.

    llama_cpp_convert.py LLAMA_CPP_SOURCE FOLDER OUT TYPE PRE

llama.cpp's list does not contain the generated tokenizers, so its look-up is replaced by PRE; all else is its own.
"""

import runpy
import sys
from pathlib import Path


def main(source: str, folder: str, out: str, kind: str, pre: str) -> None:
    sys.path[:0] = [source, str(Path(source) / "gguf-py")]
    from conversion import base

    base.TextModel.get_vocab_base_pre = lambda _self, _tokenizer: pre
    script = Path(source) / "convert_hf_to_gguf.py"
    sys.argv = [str(script), folder, "--outfile", out, "--outtype", kind.lower()]
    runpy.run_path(str(script), run_name="__main__")


if __name__ == "__main__":
    main(*sys.argv[1:])
