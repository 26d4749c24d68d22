"""Methods by name: options are checked before anything is played, and no name is known outside `trainers/methods`."""

from __future__ import annotations

import contextlib
import re
import sys
import types
from pathlib import Path
from unittest import mock

import pytest
import torch
from helpers.recorder import NAMES
from helpers.tiny import tiny_model, tiny_tokenizer
from helpers.toy import ToySuite
from helpers.update_cases import SUITE, Angles, config, play, score

from turncredit.credit import Credit, grpo, register_credit, registry, signals
from turncredit.trainers import GRPOTrainer, Method, Teacher, get_method, list_methods, provides, register_method
from turncredit.trainers.batch import make_batch, usable
from turncredit.trainers.methods import contexts, list_providers, providers
from turncredit.trainers.methods import registry as methods

TASKS = SUITE.tasks("train")[:4]


@pytest.fixture(autouse=True)
def nothing_stays():
    with contextlib.ExitStack() as stack:
        for known in (registry._REGISTRY, providers._PROVIDERS, methods._METHODS, contexts.CONTEXTS, signals._SIGNALS):
            stack.enter_context(mock.patch.dict(known))
        yield


def trainer(folder, suite=SUITE, **changes):
    return GRPOTrainer(tiny_model(), tiny_tokenizer(), suite, config(folder, **changes), encoder=Angles())


def test_every_name_resolves_with_all_its_options():
    assert set(NAMES.split()) <= set(list_methods())
    for name in NAMES.split():
        method = get_method(name)
        assert method.name == name
        assert {"student_context", "invalid_penalty"} <= set(method.options)
        assert set(methods.EVERY_METHOD) <= set(method.options) or not method.reads_teacher
    assert get_method("align_opsd_alfworld_3b").options["action_filter"] is True
    assert get_method("align_opsd_alfworld_7b").options["action_filter"] is False


@pytest.mark.parametrize(
    ("name", "option", "meant"),
    [
        ("sdar", "coeff", "coef"),
        ("agent_opsd", "gama", "gamma"),
        ("align_opsd", "encodr", "encoder"),
        ("grpo", "invalid_penalti", "invalid_penalty"),
        ("step_opsd", "refresh", "refresh_every"),
    ],
)
def test_an_unknown_option_of_factory_credit_provider_or_any_method_is_named(name, option, meant):
    with pytest.raises(TypeError, match=rf"options of {name} must be among .*, got '{option}'; did you mean '{meant}'"):
        get_method(name, **{option: 1})


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("agent_opsdd", {}, r"name must be one of .*, got 'agent_opsdd'; did you mean 'agent_opsd'"),
        ("sdar", {"coef": -1.0}, "coef must be a number of at least 0, got -1.0"),
        ("align_opsd", {"encoder": ""}, "encoder must be text"),
        ("align_opsd", {"action_filter": 1}, "action_filter must be True or False"),
        ("align_opsd", {"teacher_max_completion_length": 0}, "teacher_max_completion_length must be a whole number"),
        ("grpo", {"invalid_penalty": "0.1"}, "invalid_penalty must be a number"),
        ("agent_opsd", {"teacher": "stael"}, r"teacher must be one of .*, got 'stael'; did you mean 'stale'"),
        ("agent_opsd", {"teacher_context": 3}, "context must be a name, a function or None, got 3"),
        ("agent_opsd", {"student_context": 3}, "student_context must be a name or None, got 3"),
        ("grpo", {"teacher": "ema"}, "teacher must be left out for grpo, got 'ema': it reads no teacher"),
    ],
)
def test_a_bad_value_is_named_before_anything_is_played(name, options, message):
    with pytest.raises((TypeError, ValueError), match=message):
        get_method(name, **options)


def test_a_signal_that_nobody_provides_is_refused_early():
    @register_credit("by_value", requires=("values",))
    def by_value(inputs):
        return grpo(inputs)

    with pytest.raises(ValueError, match=r"by_value must attach the module 'value'.*Method\(modules=...\)"):
        get_method("by_value")

    providers._PROVIDERS.pop("anchor_ids")
    with pytest.raises(
        ValueError, match=r"signals that gigpo reads must have a provider, got 'anchor_ids' without one"
    ):
        get_method("gigpo")


def test_what_is_built_on_a_credit_function_has_what_goes_with_it():
    @register_method("my_steps")
    def my_steps(*, lam: float = 0.3) -> Method:
        return Method("step_opsd", options={"lam": lam})

    register_credit("steps_2", requires=("span_mask", "teacher_logprobs"))(lambda inputs: grpo(inputs))
    for name in ("step_opsd", "my_steps"):
        assert get_method(name).teacher == Teacher("stale", refresh_every=10, context="hindsight"), name
    assert get_method("my_steps", lam=0.1).credit.options["lam"] == 0.1
    assert get_method("my_steps").credit.options["lam"] == 0.3
    assert get_method("my_steps", teacher_context="privileged").teacher.context == "privileged"
    assert get_method("steps_2").teacher == Teacher()


class Unsaved:
    def state_dict(self):
        return {"a set": {1, 2}, "a function": open}

    def load_state_dict(self, state):
        pass


def test_a_state_that_no_checkpoint_can_hold_is_named_at_the_start(tmp_path):
    register_method("mine")(lambda: Method("grpo", state={"notes": Unsaved()}))
    with pytest.raises(ValueError, match=r"state 'notes' of the method must be something that can be saved, got"):
        trainer(tmp_path, credit="mine")
    with pytest.raises(TypeError, match="state must hold parts with state_dict and load_state_dict"):
        Method("grpo", state={"notes": {}})
    with pytest.raises(TypeError, match="terms must be LossTerm objects"):
        Method("grpo", ("sdar",))


def test_names_belong_to_one_function():
    def factory() -> Method:
        return Method("grpo")

    register_method("mine")(factory)
    register_method("mine")(factory)
    with pytest.raises(ValueError, match=r"register_method: name must be new, got 'mine'"):
        register_method("mine")(lambda: Method("grpo"))
    with pytest.raises(TypeError, match="by keyword with a default"):
        register_method("other")(lambda coef: Method("grpo"))
    with pytest.raises(ValueError, match=r"provides: name must be new, got 'anchor_ids'"):
        provides("anchor_ids")(lambda batch, run: None)
    register_method("no_method")(lambda: "grpo")
    with pytest.raises(TypeError, match="no_method must return a Method, got str"):
        get_method("no_method")
    assert {"correspondence", "teacher_logprobs", "values", "entropies"} <= set(list_providers())


class NoHint(ToySuite):
    def privileged_context(self, task):
        return None


@pytest.mark.parametrize(("name", "who"), [("agent_opsd", "teacher"), ("sdar", "teacher"), ("skill_grpo", "student")])
def test_a_suite_without_the_context_is_no_silent_grpo(tmp_path, name, who):
    message = (
        rf"suite must have a context 'privileged' for {name}, whose {who} reads it, got None for all 8 tasks of toy"
    )
    with pytest.raises(ValueError, match=message):
        trainer(tmp_path, NoHint(num_tasks=8), credit=name)


class NoFacts(ToySuite):
    def contexts(self, task):
        return {"hint": f"say {task.type}", "facts": None}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"teacher_context": "hint+facts"}, "suite must have a context 'facts' for agent_opsd, whose teacher reads it"),
        ({"student_context": "facts"}, "suite must have a context 'facts' for agent_opsd, whose student reads it"),
        ({"student_context": "hindsight"}, "name must be a context of the suite 'toy'.* got 'hindsight'"),
    ],
)
def test_every_part_of_a_context_is_there_and_a_teachers_own_names_are_no_students(tmp_path, options, message):
    with pytest.raises(ValueError, match=message):
        trainer(tmp_path, NoFacts(num_tasks=8), credit="agent_opsd", credit_options=options)
    trainer(tmp_path, NoHint(num_tasks=8), credit="step_opsd").close()  # hindsight is made of siblings


class Named(ToySuite):
    def contexts(self, task):
        return {"skills": "step one two", "hint": self.privileged_context(task)}


def test_the_student_reads_the_skills_and_the_teacher_the_hint(tmp_path):
    options = {"student_context": "skills", "teacher_context": "hint"}
    suite = Named(num_tasks=8, lenient=True)
    with trainer(tmp_path, suite, credit="agent_opsd", credit_options=options, num_iterations=1) as run:
        run.train_step()
        student = [run.tokenizer.decode(prompt) for prompt in run.run.batch.prompts]
        teacher = [run.tokenizer.decode(prompt) for prompt in run.run.teacher_prompts()]
    assert all("step one two" in text and "hint" not in text for text in student)
    assert all("hint say" in text and "step one two" not in text for text in teacher)
    with pytest.raises(ValueError, match=r"must be a context of the suite 'toy'.*got 'skils'; did you mean 'skills'"):
        trainer(tmp_path, suite, credit="agent_opsd", credit_options={"teacher_context": "skils"})


@pytest.mark.parametrize(
    ("made", "message"),
    [
        (torch.zeros(3), r"mine: provider of mood must give 'mood' as \[M\] = \[34\] or \[M, T\]"),
        (torch.full((34,), torch.nan), "mine: provider of mood must give 'mood' as finite numbers, got nan"),
    ],
)
def test_what_a_provider_returns_is_checked_where_it_returns(tmp_path, made, message):
    from turncredit.trainers import LossTerm

    provides("mood")(lambda batch, run: made)
    term = LossTerm("mood", reads=("mood",), function=lambda batch: batch.signals["mood"] * batch.logprobs)
    register_method("mine")(lambda: Method("grpo", (term,)))
    batch = make_batch(usable(play(tiny_model(), TASKS, 0)))
    with trainer(tmp_path, credit="mine") as run, pytest.raises(ValueError, match=message):
        run.phase(batch, 0)


def test_what_prepare_returns_is_checked_against_what_it_announced(tmp_path):
    register_method("mine")(lambda: Method("grpo", prepare=lambda batch, run: {"a": 1}, gives=("b",)))
    batch = make_batch(usable(play(tiny_model(), TASKS, 0)))
    with (
        trainer(tmp_path, credit="mine") as run,
        pytest.raises(TypeError, match=r"mine: prepare must return a mapping of \['b'\], got \['a'\]"),
    ):
        run.phase(batch, 0)


def test_entropies_come_in_one_pass_with_the_logprobs_that_are_scored_again(tmp_path):
    @register_credit("by_entropy", requires=("entropies",))
    def by_entropy(inputs) -> Credit:
        return grpo(inputs)

    batch = make_batch(usable(play(tiny_model(), TASKS, 0)))
    with trainer(tmp_path, credit="by_entropy", recompute_logprobs=True, beta=0.0) as run:
        passes, real = [], run.run.score
        run.run.score = lambda prompts, responses, **more: passes.append(more) or real(prompts, responses, **more)
        inputs = run.phase(batch, 0).inputs
        with torch.no_grad():
            for row, turn in enumerate(batch.turns):
                own, entropy = score(run.model, turn.prompt_ids, turn.response_ids, 0.7)
                torch.testing.assert_close(inputs.entropies[row, : len(entropy)], entropy, rtol=0, atol=1e-5)
                torch.testing.assert_close(inputs.student_logprobs[row, : len(own)], own, rtol=0, atol=1e-5)
    assert passes == [{"entropy": True, "modules": ()}]


def test_another_model_teaches_and_must_have_the_vocabulary_and_the_positions(tmp_path):
    batch = make_batch(usable(play(tiny_model(), TASKS, 0)))
    options = {"credit": "agent_opsd", "credit_options": {"teacher_context": None}}
    other = tiny_model(7)

    def make(teacher, **changes):
        settings = config(tmp_path, **{**options, **changes})
        return GRPOTrainer(tiny_model(), tiny_tokenizer(), SUITE, settings, teacher_model=teacher)

    with make(other) as run:
        scores = run.phase(batch, 0).inputs.teacher_logprobs
        assert not any(parameter.requires_grad for parameter in other.parameters())
    with torch.no_grad():
        for row, turn in enumerate(batch.turns):
            own, _ = score(other, turn.prompt_ids, turn.response_ids, 0.7)
            torch.testing.assert_close(scores[row, : len(own)], own, rtol=0, atol=1e-5)
    with pytest.raises(ValueError, match="teacher must have the model's vocabulary, got embeddings of 40 and"):
        make(tiny_model(vocab_size=40))
    with pytest.raises(ValueError, match="teacher must take rows of 2056 tokens"):
        make(tiny_model(max_position_embeddings=64))
    with pytest.raises(ValueError, match="teacher must be left out for grpo"):
        make(other, credit="grpo", credit_options={})
    folder = tmp_path / "teacher"
    other.save_pretrained(folder)
    tiny_tokenizer().save_pretrained(folder)
    settings = config(tmp_path, credit="agent_opsd", credit_options={"teacher": str(folder), "teacher_context": None})
    with GRPOTrainer(tiny_model(), tiny_tokenizer(), SUITE, settings) as run:
        assert torch.equal(run.phase(batch, 0).inputs.teacher_logprobs, scores)


def test_a_method_of_ones_own_with_an_option_called_like_the_penalty_gets_the_residual(tmp_path):
    @register_credit("with_option")
    def with_option(inputs, *, invalid_penalty: float = 7.0) -> Credit:
        return grpo(inputs)

    batch = make_batch(usable(play(tiny_model(), TASKS, 0)))
    rows = []
    for name in ("with_option", "grpo"):
        with trainer(tmp_path / name, credit=name) as run:
            rows.append(run.phase(batch, 0))
    assert torch.equal(rows[0].rows.advantages, rows[1].rows.advantages)
    assert rows[0].metrics["credit/invalid_residual_max_abs"] > 0


def test_rows_hold_the_teachers_own_scores_and_scores_are_rectified_once(tmp_path, monkeypatch):
    align = sys.modules["turncredit.credit.align.align_opsd"]  # its function has the module's name
    calls, real = [], align.rectify
    monkeypatch.setattr(align, "rectify", lambda *args, **options: calls.append(1) or real(*args, **options))
    batch = make_batch(usable(play(tiny_model(), TASKS, 0)))
    with trainer(tmp_path, credit="align_distill") as run:
        result = run.phase(batch, 0)
    assert len(calls) == 1
    assert sorted(result.rows.signals) == ["rectified_logprobs", "ref_logprobs"]
    with trainer(tmp_path / "b", credit="align_opsd_alfworld_3b") as run:
        result = run.phase(batch, 0)
    assert torch.equal(result.rows.signals["teacher_logprobs"], result.inputs.teacher_logprobs)


@pytest.mark.parametrize("name", ["last_turns", "rare_turns", "likely", "next_turn", "critic", "hint_gain"])
def test_the_documented_methods_train_by_name(tmp_path, monkeypatch, name):
    page = (Path(__file__).resolve().parents[2] / "docs" / "adding_a_method.md").read_text()
    for number, block in enumerate(re.findall(r"```python\n(.*?)```", page, re.DOTALL)):
        module = types.ModuleType(f"adding_a_method_{number}")
        monkeypatch.setitem(sys.modules, module.__name__, module)
        exec(compile(block, module.__name__, "exec", dont_inherit=True), vars(module))
    with trainer(tmp_path, ToySuite(num_tasks=8, lenient=True), credit=name, warmup_steps=0) as run:
        metrics = run.train_step()
    assert metrics["train/optimizer_steps"] == 4
