"""Positions at which a graph can be started in the middle, on handmade graphs."""

import os

import msgspec
import psutil
import pytest

from quantize.child import ChildDied
from quantize.files.measurement_folder import WorkFolder
from quantize.measurements import MeasureRequest
from quantize.native.split_points import Node, find_cuts

CACHE = 9000  # the address of memory that is not a node


def node(address, reads, name="", storage=None, uses=(), multiplies=False, stream=True):
    return Node(
        name=name or f"node-{address}",
        address=address,
        storage=storage or address,
        reads=tuple(reads),
        uses=uses,
        multiplies=multiplies,
        stream=stream,
        width=8,
    )


def two_layers():
    """Embedding 1, a mask 2 that both layers read, layer 0 (3 to 5), layer 1 (6 to 8), head 9."""
    return [
        node(1, [], uses=("token_embd.weight",)),
        node(2, [], "mask", stream=False),
        node(3, [1], stream=False),
        node(4, [3, 2], uses=("blk.0.attn_q.weight",), multiplies=True),
        node(5, [1, 4], "sum-0"),
        node(6, [5], stream=False),
        node(7, [6, 2], uses=("blk.1.attn_q.weight",), multiplies=True),
        node(8, [5, 7], "sum-1"),
        node(9, [8], uses=("output.weight",), multiplies=True),
    ]


def test_the_cut_is_the_sum_that_the_next_layer_reads_and_what_is_shared_is_kept():
    cuts = find_cuts(two_layers())

    assert set(cuts.by_layer) == {1}
    assert cuts.by_layer[1].name == "sum-0"
    assert cuts.by_layer[1].index == 4
    assert cuts.by_layer[1].shared == frozenset({1})


@pytest.mark.parametrize(
    ("name", "layer"),
    [
        ("blk.1.attn_q.weight", 1),
        ("output.weight", 1),
        ("blk.0.attn_q.weight", None),
        ("token_embd.weight", None),
        ("not.there.weight", None),
        ("sum-1", 1),
    ],
)
def test_a_weight_is_evaluated_from_the_last_cut_before_its_first_use(name, layer):
    cuts = find_cuts(two_layers())

    found = cuts.before(name)

    assert (found.layer if found else None) == layer


def test_no_cut_where_a_later_layer_reads_what_an_earlier_one_multiplied():
    nodes = two_layers()
    nodes[6] = msgspec.structs.replace(nodes[6], reads=(6, 2, 4))

    assert find_cuts(nodes).by_layer == {}


def test_no_cut_where_layers_share_a_cache():
    """A later layer reads memory that an earlier one wrote, although their nodes are not each other's sources."""
    nodes = two_layers()
    nodes.insert(4, node(40, [4], "written", storage=CACHE, stream=False))
    assert find_cuts(nodes).by_layer.keys() == {1}

    nodes[7] = msgspec.structs.replace(nodes[7], reads=(6, 2, CACHE))

    assert find_cuts(nodes).by_layer == {}


def test_a_node_of_which_there_is_a_view_only_is_no_cut():
    nodes = two_layers()
    nodes[4] = msgspec.structs.replace(nodes[4], stream=False)

    assert find_cuts(nodes).by_layer == {}


def test_the_scratch_folder_of_a_process_that_was_killed_is_swept(tmp_path):
    source, text = tmp_path / "source", tmp_path / "text"
    source.write_bytes(b"1")
    text.write_bytes(b"2")
    folder = WorkFolder.open(MeasureRequest(source=source, calibration=text, cache_dir=tmp_path / "cache"))
    dead = next(pid for pid in range(2_000_000, 4_000_000) if not psutil.pid_exists(pid))
    left = folder.path / f"scratch-0a.{dead}.partial"
    (left / "reference").mkdir(parents=True)
    (left / "reference" / "3.0.npy").write_bytes(b"x")

    with folder.scratch() as mine:
        (mine / "3.0.npy").write_bytes(b"x")
        folder.sweep()
        kept = sorted(p.name for p in folder.path.glob("*.partial"))

    assert kept == [mine.name]
    assert mine.name.split(".")[-2] == str(os.getpid())
    assert not list(folder.path.glob("*.partial"))


def test_what_a_child_leaves_that_dies_is_swept_when_it_is_told(tmp_path):
    source, text = tmp_path / "source", tmp_path / "text"
    source.write_bytes(b"1")
    text.write_bytes(b"2")
    folder = WorkFolder.open(MeasureRequest(source=source, calibration=text, cache_dir=tmp_path / "cache"))
    dead = next(pid for pid in range(2_000_000, 4_000_000) if not psutil.pid_exists(pid))

    def die():
        with folder.swept():
            (folder.path / f"scratch-0a.{dead}.partial" / "reference").mkdir(parents=True)
            raise ChildDied("alpha", -6, ())

    with pytest.raises(ChildDied):
        die()

    assert not list(folder.path.glob("*.partial"))
