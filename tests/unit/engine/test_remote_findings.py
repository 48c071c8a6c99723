"""The doctor's findings about workers."""

import typing

import pytest

from engine.remotes.findings import findings
from engine.remotes.registry import RemoteRegistry
from engine.remotes.types import Remote, Seen, State


def registry(state, reason=""):
    made = RemoteRegistry()
    made.put(Remote(name="desk", host="desk-pc", user="you", host_key="", port=2222))
    if state != "unknown":
        made.saw("desk", Seen(state=state, reason=reason, at=1.0))
    return made


def test_a_worker_that_is_well_is_not_mentioned():
    assert findings(registry("ok")) == ()


@pytest.mark.parametrize("state", [s for s in typing.get_args(State) if s != "ok"])
def test_every_other_state_has_a_title_and_a_next_step(state):
    (found,) = findings(registry(state, "it did not answer"))
    assert found.id == f"remote_{state}"
    assert "desk" in found.title
    assert found.fix
    assert "{" not in found.fix
    assert found.severity == ("advice" if state in {"slow", "unknown"} else "warning")


def test_the_reason_and_the_address_are_told():
    (found,) = findings(registry("refused", "it takes none of your keys"))
    assert found.detail == "It takes none of your keys."
    assert found.fix.endswith("ssh -p 2222 you@desk-pc")
