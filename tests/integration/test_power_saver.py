"""Modes hold the system's power profiles; a fake `powerprofilesctl` keeps a file with the profile meanwhile."""

import sys
from types import SimpleNamespace

import pytest

from devices.power_saver import PERFORMANCE, SAVER, PowerProfile
from devices.programs import installed_program
from devices.types import Usage
from engine.api.machine import PowerLimits
from engine.energy.energy_accounting import JouleLedger
from engine.placement.types import PlacementLimits
from engine.pool.generation_hooks import GenerationHooks
from engine.runner.protocol import LoadSettings
from engine.server.power import PowerService
from tests.support.servers import wait_for

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="a script is started by its first line")


@pytest.fixture
def note(tmp_path):
    return tmp_path / "held"


@pytest.fixture
def find(tmp_path, note):
    program = tmp_path / "powerprofilesctl"
    program.write_text(
        f"#!{sys.executable}\nimport pathlib, subprocess, sys\n"
        "assert sys.argv[1:3] == ['launch', '--profile'], sys.argv\n"
        f"note = pathlib.Path({str(note)!r})\nnote.write_text(sys.argv[3])\n"
        "done = subprocess.run(sys.argv[8:])\nnote.unlink()\nsys.exit(done.returncode)\n"
    )
    program.chmod(0o755)
    return lambda name: str(program) if name == "powerprofilesctl" else installed_program(name)


@pytest.fixture
def saver(find):
    return PowerProfile(SAVER, find)


def service(tmp_path, saver, performance=None, loaded=()):
    pool = SimpleNamespace(loaded=list(loaded), hooks=GenerationHooks())
    models = SimpleNamespace(overrides=PlacementLimits())
    return PowerService(pool, models, JouleLedger(), tmp_path / "power.json", saver=saver, performance=performance)


def test_the_profile_is_held_while_the_mode_is_quiet(tmp_path, saver, note):
    made = service(tmp_path, saver)
    made.set(PowerLimits(mode="quiet"))
    wait_for(note.exists)
    assert made.state().saver
    made.set(PowerLimits(mode="fast"))
    wait_for(lambda: not note.exists())
    assert not made.state().saver


def test_it_ends_with_the_server_and_is_held_again_after_a_start(tmp_path, saver, note):
    service(tmp_path, saver).set(PowerLimits(mode="quiet"))
    wait_for(note.exists)
    saver.release()
    wait_for(lambda: not note.exists())
    again = service(tmp_path, saver)
    wait_for(note.exists)
    again.close()
    wait_for(lambda: not note.exists())


def test_a_system_without_profiles_stays_as_it_is(tmp_path):
    made = service(tmp_path, PowerProfile(SAVER, lambda name: None))
    made.set(PowerLimits(mode="quiet"))
    assert (made.state().mode, made.state().saver) == ("quiet", False)


def test_a_fast_computer_is_faster_while_a_model_works_on_mains(tmp_path, find, note, monkeypatch):
    battery = {"unplugged": False}
    monkeypatch.setattr("engine.server.power.is_unplugged", lambda: battery["unplugged"])
    runner = SimpleNamespace(active_requests=1, pid=1)
    model = SimpleNamespace(runner=runner, settings=LoadSettings(path="m"))
    made = service(tmp_path, PowerProfile(SAVER, find), PowerProfile(PERFORMANCE, find), [model])
    usage = Usage(at=0.0, cpu_frac=1.0)

    def sample(times=1, active=1):
        runner.active_requests = active
        for _ in range(times):
            made.sampled(usage, 1.0)

    sample()
    assert not made.state().performance, "the mode is balanced"
    made.set(PowerLimits(mode="fast"))
    sample()
    wait_for(lambda: note.exists() and note.read_text() == "performance")
    assert made.state().performance
    sample(5, active=0)
    assert made.state().performance, "the next request comes at once"
    sample(6, active=0)
    wait_for(lambda: not note.exists())
    sample()
    wait_for(note.exists)
    battery["unplugged"] = True
    sample()
    wait_for(lambda: not note.exists())
    battery["unplugged"] = False
    sample()
    wait_for(note.exists)
    made.set(PowerLimits(mode="fast", cap_w=30))
    wait_for(lambda: not note.exists())
    made.set(PowerLimits(mode="fast"))
    sample()
    wait_for(note.exists)
    made.close()
    wait_for(lambda: not note.exists())
