"""Where the user wants a model is kept, and beats what was learnt."""

import json

from engine.placement.history import PlacementHistory


def test_a_pin_survives_and_can_be_taken_back(tmp_path):
    file = tmp_path / "dispatch.json"
    memory = PlacementHistory(file)
    memory.remember("m", {"n_gpu_layers": 0})
    memory.set_pin("m", "gpu0/vulkan")
    again = PlacementHistory(file)
    assert again.pin("m") == "gpu0/vulkan"
    assert again.remembered("m") == {}, "what an earlier place had to give up does not hold for the new one"
    again.set_pin("m", None)
    assert PlacementHistory(file).pin("m") is None


def test_a_damaged_pin_is_no_pin(tmp_path):
    file = tmp_path / "dispatch.json"
    file.write_text(json.dumps({"pins": {"a": 3, "b": "cpu"}, "speeds": [], "ladders": None}))
    memory = PlacementHistory(file)
    assert memory.pin("a") is None
    assert memory.pin("b") == "cpu"
