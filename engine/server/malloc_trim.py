"""What a large request needed goes back to the system once the server has a moment for it."""

import asyncio
import logging
from collections.abc import Callable
from typing import Final

import psutil

from devices.process_memory import give_back_freed

LOOK_S: Final = 5.0
# A body of 60 MB left 52 MB in the C library's heap for good, 500,000 messages 20 more (docs/log.md, marathons).
WORTH_BYTES: Final = 16 << 20
# What a request that is still read holds cannot go back yet: so many looks in a row without a gain, and it is kept.
LOOKS: Final = 12

log = logging.getLogger(__name__)


async def give_back_when_idle(busy: Callable[[], bool]) -> None:
    """Until it is cancelled: whenever the process has grown by so much and nobody waits for a model."""
    least = looks = 0
    while True:
        try:
            held = psutil.Process().memory_info().rss
            if least and held - least >= WORTH_BYTES and not busy():
                await asyncio.to_thread(give_back_freed)
                left = psutil.Process().memory_info().rss
                log.info("memory given back: %d MB", (held - left) // 1_000_000)
                looks = looks + 1 if held - left < WORTH_BYTES else 0
                if left - least < WORTH_BYTES or looks >= LOOKS:
                    least, looks = left, 0
            else:
                least = min(held, least) or held
        except OSError as error:  # no descriptor to look with
            log.debug("memory could not be looked at: %s", error)
        await asyncio.sleep(LOOK_S)
