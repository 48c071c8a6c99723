"""Several recordings at once: each is transcribed as if it were alone, and none waits for the whole of another."""

import asyncio
import io
import wave
from contextlib import asynccontextmanager
from types import SimpleNamespace

import numpy as np
import psutil
import pytest

from devices.memory_ledger import Ledger
from engine.core.ownership import request_owner
from engine.runner.onnx.speech.audio import RATE
from engine.server import speech
from engine.server.speech import Segment, Speech, Turns
from tests.support.machines.machines import reports
from tests.support.models.tiny_speech import loudness_detector, tiny_speech

HOST = reports()["sh-linux-amdvlk-vs-rocm"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    made = tmp_path_factory.mktemp("speech")
    tiny_speech(made, 1.0)
    loudness_detector(made / "silero_vad.onnx")
    return made


@pytest.fixture
def service(folder, tmp_path, monkeypatch):
    monkeypatch.setenv("TESSERA_SPEECH", str(folder))
    return Speech(Ledger(lambda: HOST), lambda *_: SimpleNamespace(provider="", reasons=()), tmp_path)


def spoken(num_segments, seed):
    """Bursts of noise, which the detector takes for speech, and long pauses."""
    rng = np.random.default_rng(seed)
    burst = [rng.normal(size=RATE // 2).clip(-3, 3) / 4 for _ in range(num_segments)]
    samples = np.concatenate([np.concatenate((each, np.zeros(RATE * 6 // 5))) for each in burst])
    out = io.BytesIO()
    with wave.open(out, "wb") as file:
        file.setparams((1, 2, RATE, 0, "NONE", ""))
        file.writeframes((samples * 32767).astype("<i2").tobytes())
    return out.getvalue()


LONG, SHORT = spoken(30, 1), spoken(2, 2)


@asynccontextmanager
async def held(service, num_recordings):
    """Hold the turn until so many other recordings wait for theirs."""
    with service._turns.entered("nobody") as other:
        async with service._turns.turn(other):
            yield
            while len(service._turns._waiting) < num_recordings:  # noqa: ASYNC110 - there is no event for it
                await asyncio.sleep(0.01)


class Log:
    """Transcribes recordings and notes the order of their segments."""

    def __init__(self, service):
        self.service = service
        self.order = []

    async def texts(self, name, sound, owner="", after=None):
        """The texts of a recording; `after` is awaited after its first segment."""
        request_owner.set(owner)
        found = []
        async for item in self.service.transcribe(sound):
            if isinstance(item, Segment):
                found.append(item.transcript.text)
                self.order.append(name)
                if after is not None:
                    after.set()
        return found


def run(service, work):
    async def main():
        try:
            return await work(Log(service))
        finally:
            await service.close()

    return asyncio.run(asyncio.wait_for(main(), 120))


def test_a_short_recording_does_not_wait_for_a_long_one(service):
    async def work(log):
        alone = [await log.texts("alone", sound) for sound in (LONG, SHORT)]
        begun = asyncio.Event()
        long = asyncio.create_task(log.texts("long", LONG, after=begun))
        await begun.wait()
        async with held(service, 2):
            short = asyncio.create_task(log.texts("short", SHORT))
        together = [await long, await short]
        return log.order, alone, together

    order, alone, together = run(service, work)
    assert together == alone
    assert [len(texts) for texts in alone] == [30, 2]
    assert order[-10:] == ["long"] * 10


def test_a_key_with_many_recordings_does_not_delay_another(service):
    async def work(log):
        async with held(service, 7):
            many = [asyncio.create_task(log.texts(f"many {i}", LONG, "greedy")) for i in range(6)]
            other = asyncio.create_task(log.texts("other", SHORT, "other"))
        await other
        order = list(log.order)
        for task in many:
            task.cancel()
        await asyncio.gather(*many, return_exceptions=True)
        return order, await log.texts("later", SHORT)

    order, later = run(service, work)
    assert len(order) < 30, "it waited for a whole recording of the other key"
    assert len(later) == 2


def test_a_child_that_ends_between_two_steps_reads_the_recording_again(service):
    async def work(log):
        expected = await log.texts("alone", LONG)
        begun = asyncio.Event()
        long = asyncio.create_task(log.texts("long", LONG, after=begun))
        await begun.wait()
        with service._turns.entered("") as other:
            async with service._turns.turn(other):
                child = psutil.Process(service._child.pid)
                child.kill()
                child.wait()
        return expected, await long

    expected, found = run(service, work)
    assert found == expected


async def all_that_can_go_on():
    """Turns wait for each other only, so they need some rounds of the loop and no time."""
    for _ in range(100):
        await asyncio.sleep(0)


def test_recordings_open_within_the_limits():
    async def main():
        turns = Turns(lambda _: True)
        owners = ["a"] * 3 + ["b"] * 3 + ["c"]
        entered = [turns.entered(owner) for owner in owners]
        recordings = [each.__enter__() for each in entered]

        async def one(recording):
            async with turns.turn(recording):
                pass

        tasks = [asyncio.create_task(one(recording)) for recording in recordings]
        await all_that_can_go_on()
        assert sum(task.done() for task in tasks) == speech.MAX_OPEN == len(tasks) - 3
        assert len(turns.open_recordings) == speech.MAX_OPEN
        for each in entered[:2]:  # both that "a" had open
            each.__exit__(None, None, None)
        await all_that_can_go_on()
        assert sum(task.done() for task in tasks) == 6
        entered[3].__exit__(None, None, None)  # one of the two of "b"
        await asyncio.gather(*tasks)
        for each in (entered[2], *entered[4:]):
            each.__exit__(None, None, None)

    asyncio.run(main())
