"""A user's own task file: its format, refusals with reasons, and which answers count as correct."""

import json
import os

import pytest

from engine.core.errors import InputFault
from engine.job_kinds.quantize.gate import SavedAnswers
from engine.job_kinds.quantize.options import QuantizeOptions
from engine.job_kinds.quantize.tasks import LEAST_CASES, MOST_CASES, TaskAnswer, holds, own_tasks, task_set

GOOD = {"prompt": "What is 2 + 3?", "answer": "5"}


def written(folder, *lines):
    path = folder / "tasks.jsonl"
    path.write_text("\n".join(line if isinstance(line, str) else json.dumps(line) for line in lines), "utf-8")
    return path


def test_answers_are_kept_of_the_files_asked_last(tmp_path):
    """As many as allowed: those that are read again stay, the least recently used one is removed."""
    paths = [tmp_path / "gate" / f"{number}.jsonl" for number in range(5)]
    for age, path in enumerate(paths[:3]):
        SavedAnswers(path, most=3).add("key", TaskAnswer(f"answer {path.stem}"))
        os.utime(path, (1_000_000 + age, 1_000_000 + age))
    assert SavedAnswers(paths[0], most=3).answers == {"key": TaskAnswer("answer 0")}

    for path in paths[3:]:
        new = SavedAnswers(path, most=3)
        new.add("key", TaskAnswer("new"))
        new.add("another", TaskAnswer("new"))

    assert {p.name for p in (tmp_path / "gate").iterdir()} == {"0.jsonl", "3.jsonl", "4.jsonl"}
    assert SavedAnswers(paths[4], most=3).answers.keys() == {"key", "another"}
    assert SavedAnswers(paths[1], most=3).answers == {}
    assert not paths[1].exists(), "what is only looked for is not made"


def test_a_file_of_tasks_is_read_with_what_it_will_take(tmp_path):
    lines = [GOOD, "", {**GOOD, "system": "Be brief.", "max_tokens": 10, "name": "sum"}, GOOD, GOOD, GOOD]
    tasks = own_tasks(written(tmp_path, *lines))
    assert (tasks.task.name, tasks.task.cases) == ("tasks.jsonl", 5)
    assert tasks.task.answer_tokens == (4 * 256 + 10) // 2
    loaded = tasks.load()
    assert [t.name for t in loaded] == ["task 1", "sum", "task 3", "task 4", "task 5"]
    assert [m.role for m in loaded[1].query.messages] == ["system", "user"]
    assert loaded[1].query.max_tokens == 10
    assert all(t.query.sampling == {"temperature": 0} for t in loaded)
    assert loaded[0].check(TaskAnswer("It is 5.")) is None
    assert loaded[0].check(TaskAnswer("It is 15.")) is not None


@pytest.mark.parametrize(
    ("line", "why"),
    [
        ("{", "line 3: "),
        ("[]", "line 3: "),
        ('{"prompt": "x", "answer": "y", "anwser": "z"}', "unknown field `anwser`"),
        ({"answer": "5"}, "missing required field `prompt`"),
        ({"prompt": "x"}, "either an answer or a regex"),
        ({"prompt": "x", "answer": "a", "regex": "b"}, "either an answer or a regex"),
        ({"prompt": "x", "answer": " "}, "the answer is empty"),
        ({"prompt": "", "answer": "a"}, "length >= 1"),
        ({"prompt": "x" * 40_000, "answer": "a"}, "length <= 32000"),
        ({"prompt": "x", "regex": "("}, "the regex is invalid"),
        ({"prompt": "x", "regex": "a" * 600}, "length <= 500"),
        ({"prompt": "x", "answer": "a", "max_tokens": 0}, ">= 1"),
        ({"prompt": "x", "answer": 5}, "Expected `str"),
        ("[" * 100_000, "line 3: "),
    ],
)
def test_a_wrong_line_is_named_with_its_reason(tmp_path, line, why):
    path = written(tmp_path, GOOD, GOOD, line, GOOD, GOOD)
    with pytest.raises(InputFault) as refused:
        own_tasks(path)
    assert str(refused.value).startswith("tasks.jsonl, line 3: ")
    assert why in str(refused.value)
    assert refused.value.param == "gate"


def test_too_few_too_many_too_large_and_unreadable_files_are_refused(tmp_path):
    for count in (0, LEAST_CASES - 1, MOST_CASES + 1):
        with pytest.raises(InputFault, match=f"has {count} tasks"):
            own_tasks(written(tmp_path, *[GOOD] * count))
    large = tmp_path / "large.jsonl"
    large.write_bytes(b" " * ((4 << 20) + 1))
    with pytest.raises(InputFault, match="larger than 4 MiB"):
        own_tasks(large)
    (tmp_path / "binary.jsonl").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(InputFault, match="no UTF-8"):
        own_tasks(tmp_path / "binary.jsonl")
    with pytest.raises(InputFault, match="cannot be read"):
        own_tasks(tmp_path / "absent.jsonl")


def test_a_gate_is_a_known_name_or_a_whole_path(tmp_path):
    with pytest.raises(InputFault, match="not known here"):
        task_set("certify", {})
    with pytest.raises(InputFault):
        task_set("tasks.jsonl", {})
    with pytest.raises(InputFault) as refused:
        QuantizeOptions(model="spark", bpw=4.5, gate="tasks.jsonl").check()
    assert refused.value.param == "gate"
    QuantizeOptions(model="spark", bpw=4.5, gate="evaluate").check()
    path = written(tmp_path, *[GOOD] * 5)
    assert task_set(str(path), {}).task.cases == 5


def test_an_expected_answer_stands_as_words_of_its_own():
    assert holds("The capital is PARIS, of course.", "paris")
    assert holds("New\n  York", "new york")
    assert holds("x = -4", "-4")
    assert not holds("parish", "paris")
    assert not holds("104", "10")
    assert holds("(a|b)*", "(a|b)*"), "signs of patterns mean themselves"


@pytest.mark.process
def test_a_pattern_is_looked_for_in_a_process_that_can_be_ended(tmp_path):
    endless = {"prompt": "x", "regex": "(a+)+$"}
    tasks = own_tasks(written(tmp_path, {"prompt": "x", "regex": "(?i)^# tar"}, endless, GOOD, GOOD, GOOD))
    loaded = tasks.load()
    with tasks.checking():
        assert loaded[0].check(TaskAnswer("# Tar\n")) is None
        assert loaded[0].check(TaskAnswer("a # tar")) is not None
        with pytest.raises(InputFault, match="takes longer than 2 s"):
            loaded[1].check(TaskAnswer("a" * 60 + "b"))
        assert loaded[0].check(TaskAnswer("# tar")) is None, "the next one finds a new process"
