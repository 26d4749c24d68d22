"""What an environment may answer: numbers of every type are plain afterwards, anything wrong costs its own episode."""

from __future__ import annotations

import math
import re

import pytest
from helpers import result_fakes as known

from turncredit.envs import EnvFailure, Observation, StepResult, VectorEnv
from turncredit.envs.results import as_number, checked_answer, numeric_info


@pytest.fixture(scope="module", params=[0, 1], ids=["here", "worker"])
def envs(request):
    with VectorEnv(known.Says, 2, num_workers=request.param) as made:
        yield made


def ask(envs, action):
    """The answer to `action`, which must leave the neighbour's episode as it is."""
    envs.reset({0: "a", 1: "b"})
    answers = envs.step({0: action, 1: "go"})
    assert answers[1] == StepResult(known.FINE)
    if isinstance(answers[0], EnvFailure):
        with pytest.raises(ValueError, match="has failed"):
            envs.step({0: "go"})
    return answers[0]


@pytest.mark.parametrize("name", known.BAD_STEPS)
def test_a_bad_step_fails_its_own_episode_with_the_field_and_the_value(envs, name):
    answer = ask(envs, name)
    assert isinstance(answer, EnvFailure)
    assert answer.cause == "bad_result"
    assert re.search(known.BAD_STEPS[name][1], answer.message), answer.message


@pytest.mark.parametrize("name", known.BAD_RESETS)
def test_a_bad_reset_fails_its_own_episode(envs, name):
    answers = envs.reset({0: name, 1: "b"})
    assert answers[0].cause == "bad_result"
    assert re.search(known.BAD_RESETS[name][1], answers[0].message), answers[0].message
    assert answers[1].text == "start b"
    assert envs.reset({0: "again"})[0].text == "start again"


def plain(result):
    kinds = type(result.reward), type(result.done), type(result.success), type(result.valid)
    return (result.reward, result.done, result.success, result.valid), kinds


@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("plain", (0.5, True, True, True)),
        ("ints", (1.0, True, True, False)),
        ("numpy", (0.5, True, True, True)),
        ("arrays", (0.5, True, True, True)),
        ("tensors", (0.5, True, True, True)),
        ("decimal", (0.5, True, True, True)),
        ("bool", (1.0, False, False, True)),
    ],
)
def test_numbers_of_every_type_become_plain(envs, name, values):
    assert plain(ask(envs, name)) == (values, (float, bool, bool, bool))


def test_a_fraction_of_success_stays_one(envs):
    assert plain(ask(envs, "fraction")) == ((0.5, False, 0.25, True), (float, bool, float, bool))


def test_a_subclass_stays_what_it_is(envs):
    answer = ask(envs, "rich")
    assert (type(answer).__name__, type(answer.reward), answer.reward, answer.colour) == (
        "RichResult", float, 0.5, "blue",
    )  # fmt: skip


def test_what_is_absent_is_empty_and_sequences_become_tuples(envs):
    assert ask(envs, "info None").info == {}
    assert ask(envs, "info proxy").info == {"score": 2}
    assert ask(envs, "actions None").observation == Observation("room")
    assert ask(envs, "actions list").observation == Observation("room", ("go", "stay"))
    answer = ask(envs, "actions numpy").observation
    assert answer == Observation("room", ("go", "stay"))
    assert {type(answer.text), *map(type, answer.admissible_actions)} == {str}
    assert ask(envs, "actions set").observation.admissible_actions == ("duck", "go", "jump", "stay")


def test_an_environment_may_name_its_own_failure(envs):
    assert ask(envs, "own failure") == EnvFailure("unscored", "the judge is away")


def test_info_keeps_the_numbers_of_every_type(envs):
    info = ask(envs, "numbers").info
    assert [type(info[name]) for name in ("numpy int", "tensor", "decimal", "fraction", "numpy bool")] == [float] * 5
    assert (info["int"], type(info["int"]), info["text"], info["parts"]) == (3, int, "0.5", {"a": 1.0})
    assert numeric_info(info) == {
        "float": 0.5,
        "int": 3.0,
        "bool": 1.0,
        "numpy float": 0.25,
        "numpy int": 4.0,
        "numpy bool": 0.0,
        "array": 7.0,
        "tensor": 8.0,
        "bfloat": 0.5,
        "decimal": 0.125,
        "fraction": 0.125,
        "17": 1.0,
    }


def test_an_error_that_cannot_say_what_it_is_fails_its_own_episode(envs):
    answer = ask(envs, "talkative")
    assert answer.cause == "error"
    assert "raised Talkative" in answer.message


def test_an_environment_that_exits_in_a_worker_costs_its_episode_and_not_the_worker():
    with VectorEnv(known.Says, 2, num_workers=1) as envs:
        answer = ask(envs, "exit")
        assert "raised SystemExit" in answer.message
        assert envs.step({1: "go"})[1] == StepResult(known.FINE)


def test_an_answer_of_a_class_that_only_the_worker_knows_fails_its_own_episode():
    with VectorEnv(known.Says, 2, num_workers=1) as envs:
        answer = ask(envs, "foreign")
        assert answer.cause == "bad_result"
        assert "only_in_the_worker" in answer.message
        assert envs.step({1: "end"})[1].done
        assert envs.reset({0: "again"})[0].text == "start again"


def test_an_answer_in_order_is_handed_on_itself():
    for answer in (StepResult(Observation("x", ("a",)), 0.5, True, True), StepResult(known.FINE, info={"score": 1.0})):
        assert checked_answer("step", answer) is answer
    assert checked_answer("reset", known.FINE) is known.FINE


@pytest.mark.parametrize("value", ["1", b"1", "nan", None, [], [1], {}, object(), 1j, known.np.zeros(1), known.Mute()])
def test_what_is_no_number(value):
    assert as_number(value) is None


def test_a_masked_number_is_no_zero():
    with pytest.warns(UserWarning, match="masked"):
        number = as_number(known.np.ma.masked)
    assert number is None or math.isnan(number)
