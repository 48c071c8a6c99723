import pytest

from app.client import ApiError, ChatDelta, ServerUnreachable
from app.evals.tool_calls.cases import Case, calls, no_call, same, user
from app.evals.tool_calls.run import CertificateStore, certify
from app.evals.tool_calls.suite import suite
from engine.api.chat import FunctionDelta, ToolCallDelta


class Model:
    """A client whose model answers with `text` and the calls `made`, streamed as deltas."""

    def __init__(self, text="", made=(), error=None):
        self.text, self.made, self.error = text, made, error
        self.options = []

    def chat(self, model, messages, **options):
        self.options.append(options)
        if self.error:
            raise self.error
        yield ChatDelta(text=self.text)
        for index, (name, arguments) in enumerate(self.made):
            yield ChatDelta(
                tool_calls=(ToolCallDelta(index=index, id=f"c{index}", function=FunctionDelta(name=name)),)
            )
            for piece in (arguments[: len(arguments) // 2], arguments[len(arguments) // 2 :]):
                yield ChatDelta(tool_calls=(ToolCallDelta(index=index, function=FunctionDelta(arguments=piece)),))


def test_the_suite_is_what_it_says():
    cases = suite()
    assert len(cases) >= 30
    assert len({case.name for case in cases}) == len(cases)
    assert {case.category for case in cases} == {
        "single", "choice", "parallel", "nested", "refusal", "long context", "schema", "follow-up",
    }  # fmt: skip
    assert all(case.messages for case in cases)


@pytest.mark.parametrize(
    "model",
    [
        Model(""),
        Model("", [("no_such_tool", "{}")]),
        Model("", [("get_weather", "{broken")]),
        Model("", [("get_weather", "[]")]),
        Model(error=ApiError(400, "context_length_exceeded", "too long")),
    ],
)
def test_a_model_that_cannot_call_tools_passes_nothing(model):
    certificate = certify(model, "m", 4096)
    assert certificate.num_passed == 0
    assert all(result.reason for result in certificate.results)
    assert all(options["temperature"] == 0 for options in model.options)


def test_a_model_that_only_talks_passes_refusals_only():
    certificate = certify(Model("Paris? The amount matters."), "m", 4096)
    assert {r.category for r in certificate.results if r.passed} == {"refusal"}


def test_right_calls_pass_and_wrong_ones_say_why():
    case = Case(
        name="x",
        category="parallel",
        messages=user("?"),
        tools=(),
        check=calls(("add", {"a": 1, "b": 2}), ("add", {"a": 3, "b": 4})),
    )
    right = [("add", '{"a": 3, "b": 4}'), ("add", '{"a": 1, "b": 2.0}')]
    assert certify(Model("", right), "m", 1, cases=[case]).num_passed == 1
    for wrong in (right[:1], [*right, right[0]], [("add", '{"a": "1", "b": 2}'), right[0]]):
        (result,) = certify(Model("", wrong), "m", 1, cases=[case]).results
        assert not result.passed
        assert "call" in result.reason


@pytest.mark.parametrize(
    ("given", "wanted", "equal"),
    [
        ("Oslo, Norway", "oslo", True),
        (3.0, 3, True),
        (True, 1, False),
        ("3", 3, False),
        ({"a": 1, "extra": 2}, {"a": 1}, True),
        ({"a": 1}, {"a": 1, "b": 2}, False),
        ([1, 2], [2, 1], False),
        ([{"x": "Ann"}], [{"x": "ann"}], True),
        (None, {}, False),
    ],
)
def test_values_are_compared_as_a_person_would(given, wanted, equal):
    assert same(given, wanted) == equal


def test_answers_in_words_are_checked():
    assert no_call("Paris")("It is Paris.", []) is None
    assert no_call("Paris")("London", []) is not None
    assert no_call()("  ", []) is not None
    assert no_call()("Hi", [("x", {})]) is not None


def test_a_certificate_is_kept_for_its_model_only(tmp_path):
    store = CertificateStore(tmp_path)
    certificate = certify(Model("Paris"), "org/model:Q4", 4096)
    assert str(store.save(certificate)).startswith(str(tmp_path))
    assert store.load("org/model:Q4") == certificate
    assert store.load("org_model:Q4") is None
    assert store.load("../../etc/passwd") is None
    passed, total = certificate.by_category()["refusal"]
    assert 0 < passed <= total
    assert certificate.pass_frac == certificate.num_passed / len(certificate.results)


def test_a_server_that_is_gone_is_no_mistake_of_the_model():
    """Otherwise the model's score would count requests that never reached it."""
    with pytest.raises(ServerUnreachable):
        certify(Model(error=ServerUnreachable("http://127.0.0.1:1", "it ended")), "m", 4096)
