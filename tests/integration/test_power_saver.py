"""Low-power mode holds the system's power-saver profile; a fake `powerprofilesctl` keeps a file meanwhile."""

import sys
import time
from types import SimpleNamespace

import pytest

from devices.power_saver import PowerSaver
from devices.programs import installed_program
from engine.api.machine import PowerLimits
from engine.energy.energy_accounting import JouleLedger
from engine.placement.types import PlacementLimits
from engine.pool.generation_hooks import GenerationHooks
from engine.server.power import PowerService

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="a script is started by its first line")


def until(holds):
    end = time.monotonic() + 10
    while not holds() and time.monotonic() < end:
        time.sleep(0.01)
    assert holds()


@pytest.fixture
def note(tmp_path):
    return tmp_path / "held"


@pytest.fixture
def saver(tmp_path, note):
    program = tmp_path / "powerprofilesctl"
    program.write_text(
        f"#!{sys.executable}\nimport pathlib, subprocess, sys\n"
        "assert sys.argv[1:4] == ['launch', '--profile', 'power-saver'], sys.argv\n"
        f"note = pathlib.Path({str(note)!r})\nnote.touch()\n"
        "done = subprocess.run(sys.argv[8:])\nnote.unlink()\nsys.exit(done.returncode)\n"
    )
    program.chmod(0o755)
    return PowerSaver(lambda name: str(program) if name == "powerprofilesctl" else installed_program(name))


def service(tmp_path, saver):
    pool = SimpleNamespace(loaded=[], hooks=GenerationHooks())
    models = SimpleNamespace(overrides=PlacementLimits())
    return PowerService(pool, models, JouleLedger(), tmp_path / "power.json", saver=saver)


def test_the_profile_is_held_while_the_mode_is_quiet(tmp_path, saver, note):
    made = service(tmp_path, saver)
    made.set(PowerLimits(mode="quiet"))
    until(note.exists)
    assert made.state().saver
    made.set(PowerLimits(mode="fast"))
    until(lambda: not note.exists())
    assert not made.state().saver


def test_it_ends_with_the_server_and_is_held_again_after_a_start(tmp_path, saver, note):
    service(tmp_path, saver).set(PowerLimits(mode="quiet"))
    until(note.exists)
    saver.release()
    until(lambda: not note.exists())
    again = service(tmp_path, saver)
    until(note.exists)
    again.close()
    until(lambda: not note.exists())


def test_a_system_without_profiles_stays_as_it_is(tmp_path):
    made = service(tmp_path, PowerSaver(lambda name: None))
    made.set(PowerLimits(mode="quiet"))
    assert (made.state().mode, made.state().saver) == ("quiet", False)
