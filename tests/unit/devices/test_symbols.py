"""Functions are found in whichever library exports them, which Windows requires to be named."""

import ctypes
import ctypes.util
import sys
from pathlib import Path

import pytest

from devices.backends import symbols
from devices.backends.symbols import Exports, ggml_functions


@pytest.mark.skipif(sys.platform != "linux", reason="names two libraries of glibc")
@pytest.mark.process
def test_a_function_is_found_in_the_library_that_has_it():
    c, m = (ctypes.CDLL(ctypes.util.find_library(name)) for name in ("c", "m"))
    assert not hasattr(c, "cos")
    both = Exports(c, m)
    both.cos.restype, both.cos.argtypes = ctypes.c_double, [ctypes.c_double]
    assert both.cos(0.0) == 1.0, "what is declared of a function stays declared"
    assert both.abs(-3) == 3
    assert not hasattr(both, "no_such_function_anywhere")


def test_only_windows_needs_more_than_one_handle(monkeypatch, tmp_path):
    handle = object()
    assert ggml_functions(handle, tmp_path) is handle
    opened = []
    for name in symbols.WINDOWS_LIBRARIES:
        (tmp_path / name).write_bytes(b"")
    monkeypatch.setattr(symbols, "_is_windows", lambda: True)
    monkeypatch.setattr(ctypes, "CDLL", lambda path: opened.append(Path(path).name))
    assert isinstance(ggml_functions(object(), tmp_path), Exports)
    assert opened == ["ggml.dll", "ggml-base.dll"]
