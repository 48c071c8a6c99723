"""A child process with llama.cpp finds the memory of a load; the first token does not share the cores with it."""

import asyncio
import os

import msgspec
import pytest

from engine.core.paths import Paths
from engine.placement.memory_admission import MemoryAdmission
from engine.placement.placer import Placer
from engine.placement.resources import open_resources
from engine.runner.pipes import BufferLog
from engine.runner.protocol import LoadSettings
from tests.support.starved import no_descriptors


@pytest.fixture
def admission(bundled_model, tmp_path, monkeypatch):
    paths = Paths(*(tmp_path / name for name in ("config", "models", "state", "cache", "logs")))
    placer = Placer(open_resources(paths))
    made = MemoryAdmission(placer)
    made.asked, made.settings = [], LoadSettings(path=str(bundled_model), n_ctx=256)
    monkeypatch.setattr(placer, "dry_run", lambda settings: made.asked.append(settings.path))
    return made


async def load(admission):
    await admission.reserve("m", admission.settings)
    admission.attach("m", os.getpid(), BufferLog())
    assert admission.asked == []


async def loaded(admission):
    await load(admission)
    await asyncio.sleep(0.05)
    assert admission.asked == []


def test_the_child_is_asked_when_the_first_answer_has_ended(admission):
    async def main():
        await loaded(admission)
        admission.answered("m", 3, 1.0, 1)
        await asyncio.gather(*admission._audits)
        assert admission.asked == [admission.settings.path]

    asyncio.run(main())


@pytest.mark.process
def test_a_context_that_grew_for_the_first_answer_stays_counted(admission, monkeypatch):
    placer = admission._placer
    monkeypatch.setattr(placer, "dry_run", lambda settings: Placer.dry_run(placer, settings))

    async def main():
        await admission.reserve("m", admission.settings)
        admission.attach("m", os.getpid(), BufferLog())
        await admission.resized("m", msgspec.structs.replace(admission.settings, n_ctx=4096, kv_cells=4096))
        grown = placer.ledger.reservations()[0].parts
        admission.answered("m", 3, 1.0, 1)
        await asyncio.gather(*admission._audits)
        assert placer.ledger.reservations()[0].parts["kv"] == grown["kv"]

    asyncio.run(main())


@pytest.mark.process
def test_a_model_that_is_loaded_again_during_its_audit_keeps_its_new_reservation(admission, monkeypatch):
    placer = admission._placer
    other = msgspec.structs.replace(admission.settings, n_ctx=8192, kv_cells=8192)

    def loaded_again(settings):
        if settings == admission.settings:
            admission.release("m")
            admission.reserve_now("m", other)
        return run

    run = Placer.dry_run(placer, admission.settings)
    monkeypatch.setattr(placer, "dry_run", loaded_again)

    async def main():
        await admission.reserve("m", admission.settings)
        admission.attach("m", os.getpid(), BufferLog())
        admission.answered("m", 3, 1.0, 1)
        await asyncio.gather(*admission._audits)

    asyncio.run(main())
    (now,) = placer.ledger.reservations()
    assert now.parts["kv"] == placer.need_of(other).part_bytes("kv")
    assert (now.pid, now.measured, placer.ledger.audits.all()) == (None, None, ())


def test_a_moment_without_descriptors_leaves_the_prediction(admission, caplog):
    async def main():
        await loaded(admission)
        admission.answered("m", 3, 1.0, 1)
        with no_descriptors():
            await asyncio.gather(*admission._audits)

    asyncio.run(main())
    assert admission.asked == []
    assert "could not be looked at" in caplog.text


def test_a_load_that_has_ended_is_measured_at_once(admission):
    """Until then, a GPU's free memory would lose the load twice: it has taken its memory already."""

    async def main():
        await load(admission)
        assert admission._placer.ledger._by_owner["m"].measured is not None
        admission.release("m")

    asyncio.run(main())


def test_or_after_a_while_without_one(admission, monkeypatch):
    monkeypatch.setattr("engine.placement.memory_admission.ASKED_AFTER_S", 1.0)

    async def main():
        await load(admission)
        await asyncio.gather(*admission._audits)
        assert admission.asked == [admission.settings.path]

    asyncio.run(main())


def test_and_never_for_a_model_that_is_gone_again(admission, monkeypatch):
    monkeypatch.setattr("engine.placement.memory_admission.ASKED_AFTER_S", 1.0)

    async def main():
        await load(admission)
        admission.release("m")
        await asyncio.gather(*admission._audits)
        assert admission.asked == []

    asyncio.run(main())


def test_streamed_experts_come_with_use_so_nothing_is_learnt_from_them(admission, monkeypatch):
    """Neither the memory of a load, which would shrink the next, nor the CPU's read speed."""
    monkeypatch.setattr("engine.placement.memory_admission.LARGE_READ_BYTES", 1)
    monkeypatch.setattr("os.getloadavg", lambda: (0.0, 0.0, 0.0))
    admission.settings = msgspec.structs.replace(admission.settings, expert_bytes=1 << 20, repack=False)
    ledger, history = admission._placer.ledger, admission._placer.history

    async def main():
        await loaded(admission)
        admission.answered("m", 3, 1.0, 1)
        admission.observed("m", 1000, 1.0, 500.0)
        await asyncio.gather(*admission._audits)
        await admission.unloading("m", 0)

    asyncio.run(main())
    assert ledger.audits.all() == ()
    assert history.speed_gbs("cpu", "cpu") is None
    admission.settings = msgspec.structs.replace(admission.settings, expert_bytes=0)
    asyncio.run(main())
    assert ledger.audits.all() != ()
    assert history.speed_gbs("cpu", "cpu") is not None
