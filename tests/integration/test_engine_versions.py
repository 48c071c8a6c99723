"""Other versions of llama-cpp-python with real libraries: installed, used by real runners, rolled back, refused.

The wheels are built from the installed package with other version numbers. tests/optin/engine_version.py does the
same with another release.
"""

import base64
import hashlib
import json
import re
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
from packaging import tags

from devices.errors import EngineVersionRefused
from devices.llama_cpp_versions.folder import VARIABLE, child_variables, engines_folder, shipped_package
from devices.llama_cpp_versions.store import VersionStore
from engine.core.types import GenerationRequest, SamplingParams
from engine.placement import engine_versions
from engine.runner.llama.native import struct_layout
from tests.support.runner_calls import answered, with_runner

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = shipped_package()
pytestmark = pytest.mark.timeout(300)


def make_wheel(folder: Path, version: str, edit=None, record=None) -> Path:
    """A wheel of the installed package; `edit` changes the text of its bindings, `record` the list of hashes."""
    folder.mkdir(parents=True, exist_ok=True)
    wheel = folder / f"llama_cpp_python-{version}-{next(iter(tags.sys_tags()))}.whl"
    rows = []
    with zipfile.ZipFile(wheel, "w", zipfile.ZIP_STORED) as archive:
        for path in sorted(PACKAGE.rglob("*")):
            if not path.is_file() or "__pycache__" in path.parts:
                continue
            name = f"llama_cpp/{path.relative_to(PACKAGE).as_posix()}"
            data = path.read_bytes()
            if edit is not None and name == "llama_cpp/llama_cpp.py":
                changed = edit(data.decode())
                assert changed != data.decode()
                data = changed.encode()
            digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
            rows.append(f"{name},sha256={digest},{len(data)}")
            archive.writestr(name, data)
        listed = "\n".join(rows) if record is None else record("\n".join(rows))
        archive.writestr(f"llama_cpp_python-{version}.dist-info/RECORD", listed)
    return wheel


@pytest.fixture(scope="module")
def sound(tmp_path_factory):
    """A wheel of the same code with a later version number."""
    return make_wheel(tmp_path_factory.mktemp("wheel"), "0.3.99")


def tessera(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "app", "engine", *arguments]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)


def mapped(pid: int) -> list[str]:
    maps = Path(f"/proc/{pid}/maps").read_text(encoding="utf-8")
    return sorted({line.split()[-1] for line in maps.splitlines() if "libllama.so" in line})


def libraries_of_a_runner(path: Path) -> list[str]:
    """The libllama that a real runner of this model has mapped while it generates."""

    async def look(runner):
        request = GenerationRequest(prompt="Once", max_tokens=4, sampling=SamplingParams(temperature=0))
        answer = await answered(runner, request)
        assert answer.text
        return mapped(runner.pid)

    return with_runner(path, look)


def test_installed_used_by_runners_and_rolled_back_by_the_command(sound, bundled_model):
    done = tessera("install", str(sound))
    assert done.returncode == 0, done.stderr
    assert "KL divergence from the shipped version" in done.stdout
    assert not VersionStore(engines_folder()).chosen()
    assert libraries_of_a_runner(bundled_model) == [str(PACKAGE / "lib" / "libllama.so")]

    assert tessera("use", "0.3.99").returncode == 0
    inside = str(engines_folder() / "0.3.99" / "llama_cpp" / "lib" / "libllama.so")
    assert libraries_of_a_runner(bundled_model) == [inside]
    told = json.loads(tessera("list", "--json").stdout)
    assert not told["shipped"]["in_use"]
    assert [(row["version"], row["in_use"]) for row in told["versions"]] == [("0.3.99", True)]

    done = tessera("rollback")
    assert done.returncode == 0
    assert "shipped" in done.stdout
    assert libraries_of_a_runner(bundled_model) == [str(PACKAGE / "lib" / "libllama.so")]

    assert tessera("remove", "0.3.99").returncode == 0
    assert not list(engines_folder().glob("0*"))


def test_one_model_uses_it_and_the_others_do_not(sound, bundled_model, tmp_path):
    store = VersionStore(engines_folder())
    engine_versions.install(store, sound, [], lambda _compared: None)
    other = tmp_path / "other.gguf"
    shutil.copy(bundled_model, other)
    told = []
    engine_versions.use(store, "0.3.99", [], told.append, for_model=other)
    assert [Path(each.model) for each in told] == [other]
    inside = str(engines_folder() / "0.3.99" / "llama_cpp" / "lib" / "libllama.so")
    assert libraries_of_a_runner(other) == [inside]
    assert libraries_of_a_runner(bundled_model) == [str(PACKAGE / "lib" / "libllama.so")]
    store.remove("0.3.99")
    assert child_variables(str(other)) == {}


def put_a_field_before(text: str) -> str:
    return text.replace('("n_ctx", ctypes.c_uint32),', '("n_new", ctypes.c_uint64), ("n_ctx", ctypes.c_uint32),', 1)


def swap_two_fields(text: str) -> str:
    first, second = '("n_ctx", ctypes.c_uint32),', '("n_batch", ctypes.c_uint32),'
    return text.replace(first, "FIRST", 1).replace(second, first, 1).replace("FIRST", second, 1)


def drop_a_field_in_name(text: str) -> str:
    return text.replace('("use_extra_bufts", ctypes.c_bool)', '("use_more_bufts", ctypes.c_bool)', 1)


def lose_a_function(text: str) -> str:
    return text.replace('"llama_get_logits"', '"llama_get_something"', 1)


@pytest.mark.parametrize(
    ("edit", "words"),
    [
        (put_a_field_before, "writes 160 bytes of llama_context_params, its bindings describe 168"),
        (swap_two_fields, "llama_context_params.n_ctx reads 2048 where the default is 512"),
        (drop_a_field_in_name, "its llama_model_params has no use_extra_bufts"),
        (
            lambda text: text.replace('"llama_get_logits"', '"llama_get_something"', 1),
            "a call into it failed|do not load",
        ),
    ],
)
def test_structs_that_do_not_fit_are_refused_and_removed(tmp_path, bundled_model, edit, words):
    store = VersionStore(engines_folder())
    wheel = make_wheel(tmp_path, "0.3.98", edit)
    with pytest.raises(EngineVersionRefused, match=words):
        engine_versions.install(store, wheel, [bundled_model], lambda _compared: None)
    assert store.versions() == ()


def compute_otherwise(text: str) -> str:
    return f"""{text}

_first_init = llama_init_from_model

def llama_init_from_model(model, params):
    params.rope_freq_base = 300.0
    return _first_init(model, params)
"""


def test_a_version_that_computes_otherwise_is_refused(tmp_path, bundled_model):
    store = VersionStore(engines_folder())
    wheel = make_wheel(tmp_path, "0.3.97", compute_otherwise)
    with pytest.raises(EngineVersionRefused, match="computes something else than the shipped version"):
        engine_versions.install(store, wheel, [bundled_model], lambda _compared: None)
    assert store.versions() == ()


def test_one_that_goes_bad_is_rolled_back_by_verify(sound, bundled_model):
    store = VersionStore(engines_folder())
    engine_versions.install(store, sound, [], lambda _compared: None)
    engine_versions.use(store, "0.3.99", [bundled_model], lambda _compared: None)
    bindings = engines_folder() / "0.3.99" / "llama_cpp" / "llama_cpp.py"
    bindings.write_text(compute_otherwise(bindings.read_text(encoding="utf-8")), encoding="utf-8")
    done = tessera("verify")
    assert done.returncode == 3
    assert "Version shipped is used again" in done.stderr
    assert store.chosen() is None
    done = tessera("use", "0.3.99")
    assert done.returncode == 3
    assert "computes something else" in done.stderr
    assert store.chosen() is None


def add_foreign_file(wheel: Path) -> None:
    with zipfile.ZipFile(wheel, "a") as archive:
        archive.writestr("llama_cpp/../../outside.py", "")


@pytest.mark.parametrize(
    ("name", "make", "words"),
    [
        ("llama.whl", lambda path: path.write_bytes(b""), "not named like a wheel"),
        ("numpy-2.0.0-py3-none-any.whl", lambda path: path.write_bytes(b""), "of numpy, not of llama-cpp-python"),
        (
            "llama_cpp_python-0.3.99-py3-none-win_arm64.whl",
            lambda path: path.write_bytes(b""),
            "is for py3-none-win",
        ),
        ("llama_cpp_python-0.3.99-py3-none-any.whl", lambda path: path.write_bytes(b"PK"), "cannot be unpacked"),
        ("llama_cpp_python-0.3.99-py3-none-any.whl", lambda path: None, "there is no file|no_such"),
    ],
)
def test_what_is_no_such_wheel_is_refused_in_words(tmp_path, name, make, words):
    path = tmp_path / name
    make(path)
    done = tessera("install", str(path))
    assert done.returncode == 3
    assert re.search(words, done.stderr), done.stderr
    assert not list(engines_folder().glob("0*"))


def test_damaged_wheels_leave_nothing(tmp_path, sound):
    store = VersionStore(engines_folder())
    wrong_hash = make_wheel(tmp_path / "1", "0.3.99", record=lambda text: text.replace("sha256=", "sha256=A", 1))
    with pytest.raises(EngineVersionRefused, match="is not what its list says"):
        store.add(wrong_hash)
    outside = tmp_path / sound.name
    shutil.copy(sound, outside)
    add_foreign_file(outside)
    with pytest.raises(EngineVersionRefused, match="outside its folder"):
        store.add(outside)
    cut = tmp_path / "cut" / sound.name
    cut.parent.mkdir()
    cut.write_bytes(sound.read_bytes()[:-3_000_000])
    with pytest.raises(EngineVersionRefused, match="cannot be unpacked"):
        store.add(cut)
    assert store.versions() == ()
    assert not list(engines_folder().glob(".incoming*/*"))


def test_a_state_file_that_names_what_is_gone_means_the_shipped_version(bundled_model):
    store = VersionStore(engines_folder())
    store.folder.mkdir(parents=True)
    for state in (b'{"version": "9.9.9"}', b'{"version": "../../etc"}', b"{", b""):
        (store.folder / "in_use.json").write_bytes(state)
        assert store.chosen() is None
    assert libraries_of_a_runner(bundled_model) == [str(PACKAGE / "lib" / "libllama.so")]


def test_a_version_in_the_environment_that_is_not_installed_is_told(bundled_model, monkeypatch):
    monkeypatch.setenv(VARIABLE, "9.9.9")
    with pytest.raises(Exception, match=r"version '9.9.9' is not installed"):
        libraries_of_a_runner(bundled_model)


def test_what_the_engine_sets_is_what_is_looked_for():
    """Compares the field lists of struct_layout.py with the assignments in the sources."""
    native = ROOT / "engine" / "runner" / "llama" / "native"
    text = "".join((native / name).read_text(encoding="utf-8") for name in ("model.py", "engine_args.py"))
    found = set(re.findall(r"^ +(?:context_)?params\.([a-z_]+) = ", text, re.MULTILINE))
    assert found == {
        *struct_layout.MODEL_FIELDS, *struct_layout.CONTEXT_FIELDS, *struct_layout.NEWER_FIELDS,
    }  # fmt: skip
