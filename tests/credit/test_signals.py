"""Signals of one's own: registered, carried as extras, required by a method, checked, moved."""

from __future__ import annotations

import copy
import pickle
import re
from dataclasses import replace
from typing import Any

import pytest
import torch
from helpers.credit_cases import random_batch

from turncredit.credit import (
    Credit,
    CreditInputs,
    get_credit,
    grpo,
    register_credit,
    register_signal,
    registry,
    signals,
)
from turncredit.credit.signals import get_signal, list_signals

FIX = "count the words of every turn"


@pytest.fixture(autouse=True)
def _own_tables(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "_REGISTRY", dict(registry._REGISTRY))
    monkeypatch.setattr(signals, "_SIGNALS", dict(signals._SIGNALS))


def register_words() -> None:
    register_signal("word_counts", axes="M", low=0, high=100, fix=FIX, doc="words of each turn")


def short_turns(inputs: CreditInputs, *, most: float = 3.0) -> Credit:
    """Credit for turns of few words alone."""
    weights = (inputs.word_counts <= most).to(inputs.dtype)
    return Credit(grpo(inputs).advantages * weights[:, None], weights)


def with_words(inputs: CreditInputs, words: Any) -> CreditInputs:
    return replace(inputs, extras={"word_counts": words})


def test_a_signal_of_ones_own_from_end_to_end() -> None:
    register_words()
    register_credit("short_turns", requires=("word_counts",))(short_turns)
    method, plain = get_credit("short_turns", most=2.0), random_batch(0)
    assert method.requires == {"word_counts"}
    with pytest.raises(ValueError, match=rf"short_turns: inputs\.word_counts must be given, got None; {FIX}"):
        method(plain)
    words = torch.arange(plain.num_rows).float()
    inputs = with_words(plain, words)
    credit = method(inputs)
    assert credit.turn_weights.tolist() == [1.0, 1.0, 1.0] + [0.0] * (plain.num_rows - 3)
    assert credit.advantages[:3].equal(grpo(plain).advantages[:3])


def test_extras_are_read_by_name_and_by_attribute() -> None:
    register_words()
    plain = random_batch(0)
    inputs = with_words(plain, torch.ones(plain.num_rows))
    assert inputs.word_counts is inputs.signal("word_counts") is inputs.extras["word_counts"]
    assert plain.word_counts is None
    assert plain.signal("values") is None
    assert inputs.signal("rewards") is inputs.rewards
    with pytest.raises(AttributeError, match="no field or signal 'word_count'; define"):
        _ = inputs.word_count
    with pytest.raises(
        ValueError, match=r"get_signal: name must be one of .*, got 'word_count'; did you mean 'word_co"
    ):
        inputs.signal("word_count")
    for twin in (copy.deepcopy(inputs), pickle.loads(pickle.dumps(inputs))):
        assert twin.word_counts.equal(inputs.word_counts)


@pytest.mark.parametrize(
    ("value", "kind", "message"),
    [
        ([1.0], TypeError, "word_counts must be a torch.Tensor, got list; call .float()"),
        (
            torch.ones(9).long(),
            TypeError,
            "word_counts must be float64 or float32 or bfloat16 or float16, got torch.int64",
        ),
        (torch.ones(2), ValueError, "word_counts must be [M] = [9], got [2]; pass one value per turn"),
        (torch.full((9,), 101.0), ValueError, f"word_counts must lie in [0, 100], got 101.0 at index 0; {FIX}"),
        (torch.full((9,), torch.nan), ValueError, f"word_counts must be finite, got nan at index 0; {FIX}"),
        (
            torch.ones(9, device="meta"),
            ValueError,
            "word_counts must be on the device of response_mask (cpu), got meta",
        ),
    ],
)
def test_a_bad_extra_is_refused_with_its_fix(value: Any, kind: type, message: str) -> None:
    register_words()
    inputs = random_batch(0)
    if isinstance(value, torch.Tensor) and value.shape == (9,):
        value = value[:1].repeat(inputs.num_rows) if value.device.type == "cpu" else value.repeat(2)[: inputs.num_rows]
    message = message.replace("[9]", f"[{inputs.num_rows}]")
    with pytest.raises(kind, match=re.escape(f"CreditInputs: {message}")):
        with_words(inputs, value)


def test_a_signal_per_token_is_judged_inside_the_mask_only() -> None:
    inputs = random_batch(3)
    entropies = torch.where(inputs.response_mask, 0.5, torch.nan)
    assert replace(inputs, extras={"entropies": entropies}).entropies is entropies
    row, token = inputs.response_mask.nonzero()[2].tolist()
    entropies[row, token] = -0.25
    rule = f"entropies must be at least 0 inside response_mask, got -0.25 at row {row}, token {token}; score the"
    with pytest.raises(ValueError, match=re.escape(rule)):
        replace(inputs, extras={"entropies": entropies})


def test_a_check_of_ones_own_sees_the_batch() -> None:
    def check(value: torch.Tensor, inputs: CreditInputs) -> None:
        if int(value.max()) >= inputs.num_trajectories:
            raise ValueError(f"rivals must name trajectories of the batch, got {int(value.max())}; count from 0")

    register_signal("rivals", axes="N", kind="int", low=0, check=check)
    inputs = random_batch(0)
    rivals = torch.arange(inputs.num_trajectories)
    assert replace(inputs, extras={"rivals": rivals}).rivals is rivals
    with pytest.raises(ValueError, match="rivals must name trajectories of the batch"):
        replace(inputs, extras={"rivals": rivals + 1})
    with pytest.raises(ValueError, match=r"rivals must be at least 0, got -1 at index 0; check what made it"):
        replace(inputs, extras={"rivals": rivals - 1})


class Moved:
    def __init__(self, device: Any = "cpu") -> None:
        self.device = device

    def to(self, device: Any) -> Moved:
        return Moved(device)


def test_extras_move_with_the_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    register_words()
    register_signal("notes", axes="")
    register_signal("memo", axes="")
    inputs = random_batch(0)
    words = torch.ones(inputs.num_rows)
    inputs = replace(inputs, extras={"word_counts": words, "notes": Moved(), "memo": "keep"})
    monkeypatch.setattr("turncredit.credit.inputs.check_batch", lambda *_: None)  # the meta device has no values
    moved = inputs.to("meta")
    assert moved.word_counts.device.type == moved.rewards.device.type == "meta"
    assert (moved.notes.device, moved.memo) == ("meta", "keep")
    assert moved.teacher_logprobs.device.type == "meta"
    assert moved.correspondence is None


@pytest.mark.parametrize(
    ("extras", "kind", "message"),
    [
        ({"valeus": torch.ones(1)}, ValueError, "got 'valeus'; did you mean 'values'?"),
        (
            {"mystery": torch.ones(1)},
            ValueError,
            "got 'mystery'; define it with register_signal",
        ),
        ({"rewards": torch.ones(1)}, ValueError, "extras must not name a field, got 'rewards'; pass rewards=..."),
        ([torch.ones(1)], TypeError, "extras must be a mapping, got list; pass {name: tensor}"),
    ],
)
def test_unknown_extras(extras: Any, kind: type, message: str) -> None:
    with pytest.raises(kind, match=re.escape(message)):
        replace(random_batch(0), extras=extras)


def test_a_name_that_the_batch_uses_itself_cannot_be_an_extra() -> None:
    register_signal("num_rows", axes="M")
    with pytest.raises(ValueError, match="got 'num_rows'; define it with register_signal, by a name that CreditInputs"):
        replace(random_batch(0), extras={"num_rows": torch.ones(1)})


def test_the_same_definition_may_come_again_and_no_other() -> None:
    for _ in range(2):  # as in a notebook, where the check is a new function each time

        def check(value: Any, inputs: CreditInputs) -> None:
            pass

        register_signal("twice", axes="M", check=check)
    with pytest.raises(ValueError, match="name must be new or defined as before, got 'twice'"):
        register_signal("twice", axes="N", check=check)
    with pytest.raises(ValueError, match="name must be new or defined as before, got 'values'"):
        register_signal("values", axes="MT")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"name": "two words", "axes": "M"}, "name must be an identifier without leading underscore, got 'two words'"),
        ({"name": "_own", "axes": "M"}, "name must be an identifier without leading underscore, got '_own'"),
        ({"name": "own", "axes": "TM"}, "axes must be one of 'MT', 'M', 'N', '', got 'TM'"),
        ({"name": "own", "axes": "M", "kind": "double"}, "kind must be one of 'float', 'bool', 'int', got 'double'"),
    ],
)
def test_a_bad_definition(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=re.escape(f"register_signal: {message}")):
        register_signal(**arguments)


def test_one_table_of_everything_a_method_may_read() -> None:
    fields = set(CreditInputs.__dataclass_fields__) - {"extras"}
    assert fields < set(list_signals())
    assert {"entropies", "values"} <= set(list_signals()) - fields
    for name in list_signals():
        assert get_signal(name).doc, name
        obligatory = name in ("response_mask", "trajectory_ids", "turn_ids", "group_ids")
        assert get_signal(name).fix or obligatory, name


def test_requires_names_signals_and_says_which_was_meant() -> None:
    message = r"requires of bad must be among teacher_logprobs, .*, values.* got 'vaules'; did you mean 'values'\?"
    with pytest.raises(ValueError, match=message):
        register_credit("bad", requires=("vaules",))(grpo)
    with pytest.raises(TypeError, match="requires of bad must be a tuple of names, got 'values'; write"):
        register_credit("bad", requires="values")(grpo)

    def late(inputs: CreditInputs, *, size: float = 1.0) -> Credit:
        return grpo(inputs)

    register_credit("late", requires=lambda options: ("vaules",))(late)
    with pytest.raises(ValueError, match=r"requires of late must be among .* got 'vaules'"):
        get_credit("late")
    register_credit("plain", requires=("rewards", "values"))(late)
    assert get_credit("plain").requires == {"values"}


def test_unknown_methods_and_options_say_what_was_meant() -> None:
    with pytest.raises(ValueError, match=r"got 'agent_ospd'; did you mean 'agent_opsd'\?"):
        get_credit("agent_ospd")
    with pytest.raises(TypeError, match=r"options of agent_opsd must be among .* got 'gama'; did you mean 'gamma'\?"):
        get_credit("agent_opsd", gama=1.0)


@pytest.mark.parametrize(
    ("change", "kind", "message"),
    [
        (
            lambda a, w, m: (torch.where(m, torch.nan, a), w),
            ValueError,
            "advantages must be finite, got nan at row 0, token",
        ),
        (lambda a, w, m: (a + 1, w), ValueError, "advantages must be 0 outside response_mask, got 1.0 at row"),
        (lambda a, w, m: (torch.where(m, a, torch.nan), w), ValueError, "must be 0 outside response_mask, got nan"),
        (lambda a, w, m: (a.long(), w), TypeError, "advantages must be a float tensor [M, T], got torch.int64"),
        (lambda a, w, m: (a.tolist(), w), TypeError, "advantages must be a float tensor [M, T], got list"),
        (lambda a, w, m: (a, w[:1]), ValueError, "turn_weights must be [M] = "),
        (lambda a, w, m: (a, w / 0 * 0), ValueError, "turn_weights must be finite, got nan in row 0"),
    ],
)
def test_what_a_method_returns_is_checked_where_it_returns(change: Any, kind: type, message: str) -> None:
    def mine(inputs: CreditInputs) -> Credit:
        credit = grpo(inputs)
        return Credit(*change(credit.advantages, credit.turn_weights, inputs.response_mask))

    register_credit("mine")(mine)
    inputs = random_batch(3)
    assert not inputs.response_mask.all()
    with pytest.raises(kind, match=re.escape(message)) as error:
        get_credit("mine")(inputs)
    assert str(error.value).startswith("mine: ")


def test_a_method_says_itself_whether_it_adds_the_residual() -> None:
    def strict(inputs: CreditInputs, *, invalid_penalty: float = 0.5) -> Credit:
        return grpo(inputs)

    register_credit("strict")(strict)
    assert not get_credit("strict").adds_residual
    register_credit("strict", presets={"stricter": {"invalid_penalty": 1.0}}, adds_invalid_penalty=True)(strict)
    assert get_credit("strict").adds_residual
    assert get_credit("stricter").adds_residual
    assert get_credit("align_opsd").adds_residual
    assert get_credit("align_opsd_turn").adds_residual
    assert not get_credit("grpo").adds_residual
    with pytest.raises(
        TypeError, match="bad must have an option invalid_penalty to add the residual itself, got scale_r"
    ):
        register_credit("bad", adds_invalid_penalty=True)(grpo)
