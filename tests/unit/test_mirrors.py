"""No record repeats five fields of another without a stated reason: a new field would be written in both."""

import ast
from itertools import combinations

import pytest

from tests.support.sources import PRODUCT, parsed

FIELDS = 5
SHARE = 0.6

# Why two records may have the same fields, by package and name, because modules move. Unneeded pairs are removed.
REASONS = {
    "the other has sentences in the place of facts, or figures that the first computes": """
        engine.Model engine.ModelEntry
        engine.UpstreamRow engine.Health
    """,
    "a request has bounds, optional fields and no state; what is stored of it has the state": """
        engine.CollectionChange engine.Collection
        engine.CollectionChange engine.CollectionRequest
        engine.CollectionChange engine.CollectionConfig
        engine.CollectionRequest engine.Collection
        engine.CollectionRequest engine.CollectionConfig
        engine.Collection engine.CollectionConfig
        engine.Collection engine.Counts
        engine.OnnxConvertRequest engine.ToOnnx
        engine.BenchRequest engine.BenchOptions
        engine.RemoteRequest engine.RemoteRow
        engine.RemoteRequest engine.Remote
        engine.RemoteRow engine.Remote
        engine.UpstreamRule engine.Rule
    """,
    "two protocols, or two routes of one, name the same thing": """
        engine.ChatCompletion engine.TextCompletion
        engine.ModelRow engine._Row
        engine.InfillRequest engine.NativeRequest
        engine.ChatMessage engine.Message
        engine.ChatMessage engine.ChatMessage
        engine.ChatRequest engine.CompletionRequest
        engine.SharedSampling engine.SamplingParams
    """,
    "one side asks of the other: a rule's conditions, and the facts that they are compared with": """
        devices.Facts devices.When
    """,
    "one side is a file or a message whose form must not follow the other by accident": """
        engine.CachedHeader quantize.GgufFile
        engine.ChatQuery engine.RenderJob
        engine.EngineArgs engine.TunableSettings
        engine.EngineArgs engine._Plan
        engine.TunableSettings engine.LoadSettings
        engine.TuneReport engine.Tuned
        engine._FileHeader engine.StoredPrefix
        engine.Embed engine._Job
        engine.LoadSettings engine.LoadOptions
        engine.Stats engine.ModelStats
        engine.Stats engine.Work
        engine._Plan engine.TunableSettings
        engine._Plan engine.LoadSettings
        quantize.PlanFile quantize.LossMeasurements
    """,
    "the same words for things of two kinds, or of two moments": """
        app.SamplingControl app.Setting
        devices.Cpu devices.Device
        devices.BackendDevice devices.Runtime
        devices.BackendDevice engine.RemoteDevice
        engine.PageText engine.Passage
        engine.AnswerFinished engine.Done
        engine.Load engine.PlacementQuery
        engine.Clock engine.TimeSpent
        engine.Dimensions quantize.DecoderShape
        engine._Job engine._Job
        engine.ModelSide engine.ServerState
        engine.ServeOptions engine.AllowedOrigins
        quantize.GgufFile quantize.SafetensorsFile
        quantize.Effort quantize.JobShape
        quantize.Effort quantize.QuantizeRequest
        quantize.QuantizeRequest quantize.MeasureRequest
        quantize.DecoderShape quantize.EncoderShape
        app.SymbolHit app.Symbol
    """,
}


def fields(node):
    """Names of the fields that a class itself declares; a subclass does not repeat inherited ones."""
    return {
        line.target.id
        for line in node.body
        if isinstance(line, ast.AnnAssign)
        and isinstance(line.target, ast.Name)
        and "ClassVar" not in ast.unparse(line.annotation)
    }


def records():
    for package in PRODUCT:
        for _, tree in parsed(r"^ +\w+: ", (package,)):
            for node in ast.walk(tree):
                if isinstance(node, ast.ClassDef) and (node.bases or node.decorator_list):
                    found = fields(node)
                    if len(found) >= FIELDS:
                        yield f"{package}.{node.name}", found


def mirrors():
    for (one, first), (other, second) in combinations(records(), 2):
        shared = len(first & second)
        if shared >= FIELDS and shared >= SHARE * min(len(first), len(second)):
            yield tuple(sorted((one, other)))


@pytest.mark.slow
def test_a_record_repeats_no_other_without_a_reason():
    stated = [tuple(sorted(line.split())) for lines in REASONS.values() for line in lines.strip().splitlines()]
    assert len(stated) == len(set(stated))
    found = set(mirrors())
    assert found - set(stated) == set(), "share the fields (a base, one struct), or state the reason in REASONS"
    assert set(stated) - found == set(), "these repeat each other no longer"
