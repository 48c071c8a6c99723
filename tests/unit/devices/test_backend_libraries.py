"""Finds the backends among the files of llama.cpp's folder."""

from devices.backends.libraries import built_libraries


def test_the_cpus_variants_are_one_backend(tmp_path):
    names = ("libggml-cpu-haswell.so", "libggml-cpu-zen4.so", "libggml-vulkan.so", "libggml-base.so", "libggml.so")
    for name in (*names, "libggml-base.so.0", "libllama.so", "notes.txt"):
        (tmp_path / name).touch()
    found = {name: [path.name for path in paths] for name, paths in built_libraries(tmp_path).items()}
    assert found == {"cpu": ["libggml-cpu-haswell.so", "libggml-cpu-zen4.so"], "vulkan": ["libggml-vulkan.so"]}
