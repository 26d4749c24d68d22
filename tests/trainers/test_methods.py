"""Methods by name: options are checked before anything is played, and no name is known outside `trainers/methods`."""

from __future__ import annotations

import contextlib
import re
import sys
import types
from dataclasses import replace
from pathlib import Path
from unittest import mock

import pytest
import torch
from helpers.credit_cases import random_batch, trajectories_of
from helpers.recorder import NAMES
from helpers.tiny import tiny_model, tiny_tokenizer
from helpers.toy import ToySuite
from helpers.update_cases import SUITE, Angles, config, play, score

from turncredit.credit import Credit, get_credit, grpo, register_credit, registry, signals
from turncredit.credit.posterior import facts_of
from turncredit.trainers import (
    GRPOConfig,
    GRPOTrainer,
    LossTerm,
    Method,
    Teacher,
    get_method,
    list_methods,
    provides,
    register_method,
)
from turncredit.trainers.batch import make_batch, usable
from turncredit.trainers.methods import contexts, list_providers, providers
from turncredit.trainers.methods import registry as methods

TASKS = SUITE.tasks("train")[:4]


def named(name, method):
    methods._METHODS.pop(name, None)
    register_method(name)(lambda: method)


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
        assert "student_context" in method.options
        assert "invalid_penalty" in method.options or method.credit is None
        assert {"teacher", "teacher_context"} <= set(method.options) or not method.reads_teacher
        assert ("refresh_every" in method.options) == (method.reads_teacher and method.teacher.weights == "stale")
        again = get_method(name, **method.options)
        assert (again.options, again.described()) == (method.options, method.described())
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
        ("agent_opsd", {"refresh_every": 3}, r"refresh_every must be left out where .* agent_opsd is current, got 3"),
        ("step_opsd", {"ema_rate": 0.3}, r"ema_rate must be left out where the teacher of step_opsd is stale, got 0.3"),
        ("sdar", {"student_context": "privileged"}, "student_context of sdar must not be what its teacher reads"),
    ],
)
def test_a_bad_value_is_named_before_anything_is_played(name, options, message):
    with pytest.raises((TypeError, ValueError), match=message):
        get_method(name, **options)


@pytest.mark.parametrize("name", ["encoder", "teacher_max_completion_length", "invalid_action_penalty"])
def test_options_of_single_methods_are_refused_by_the_configuration_with_the_place_where_they_live(name):
    with pytest.raises(TypeError, match=rf"got '{name}'; it is an option of the method: credit_options="):
        GRPOConfig(**{name: 1})


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


def test_a_factory_keeps_its_options_unless_it_passes_them_on():
    pull = LossTerm("pull", function=lambda batch: -batch.logprobs)

    @register_method("keeps")
    def keeps(*, lam: float = 0.1) -> Method:
        return Method("agent_opsd", (replace(pull, coef=lam),))

    @register_method("halves")
    def halves(*, lam: float = 0.1) -> Method:
        return Method("agent_opsd", options={"lam": lam / 2})

    for options, lam in (({}, 0.1), ({"lam": 0.3}, 0.3)):
        method = get_method("keeps", **options)
        assert (method.options["lam"], method.terms[0].coef, method.credit.options["lam"]) == (lam, lam, 0.5)
        assert get_method("halves", **options).credit.options["lam"] == lam / 2


def test_what_would_have_no_effect_in_a_method_is_named():
    pull = LossTerm("pull", reads=("successes",), function=lambda batch: -batch.logprobs)
    signals.register_signal("by_rollout", axes="N")
    for method, message in (
        (Method("grpo", options={"scal_rewards": False}), r"got 'scal_rewards'; did you mean 'scale_rewards'"),
        (Method("agent_opsd", teacher=Teacher("stael")), "teacher must be one of .* did you mean 'stale'"),
        (Method("grpo", teacher=Teacher("ema")), "teacher of mine must be read by something"),
        (Method("grpo", (replace(pull, reads=("by_rollout",)),)), "a term must read signals per turn or token"),
    ):
        named("mine", method)
        with pytest.raises((TypeError, ValueError), match=message):
            get_method("mine")
    register_method("terms_alone")(lambda: Method(None, (replace(pull, reads=()),)))
    with pytest.raises(ValueError, match="invalid_penalty must be left out for terms_alone"):
        get_method("terms_alone", invalid_penalty=0.5)


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
    options = {"student_context": "hint"}  # which is what this suite calls privileged
    with pytest.raises(
        ValueError, match="student must not read what its teacher reads, got the same texts for 'hint' "
    ):
        trainer(tmp_path, suite, credit="agent_opsd", credit_options=options)
    trainer(tmp_path, suite, credit="agent_opsd", credit_options={**options, "teacher": "ema"}).close()
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


def test_prepare_gives_some_signals_and_the_details_of_credit_others(tmp_path):
    weight = torch.ones((), requires_grad=True)

    @register_credit("detailed")
    def detailed(inputs, *, broken: bool = False) -> Credit:
        returns = inputs.rewards[inputs.trajectory_ids] / (0.0 if broken else 1.0)
        return replace(grpo(inputs), details={"returns": returns})

    def prepare(batch, run):
        return {"bonus": weight * torch.full((len(batch.turns),), 2.0)}

    term = LossTerm("pull", reads=("bonus", "returns"), function=lambda batch: batch.logprobs * batch.signals["bonus"])
    register_method("mine")(lambda: Method("detailed", (term,), prepare=prepare, gives=("bonus", "returns")))
    batch = make_batch(usable(play(tiny_model(), TASKS, 0)))
    with trainer(tmp_path, credit="mine") as run:
        rows = run.phase(batch, 0).rows
        empty = run.phase(make_batch([]), 1).rows
    returns = torch.tensor([batch.trajectories[i].reward for i in batch.trajectory_ids])
    assert torch.equal(rows.signals["returns"], returns)
    assert torch.equal(rows.signals["bonus"], torch.full((len(batch.turns),), 2.0))
    assert not rows.signals["bonus"].requires_grad
    assert all(len(value) == 0 for value in empty.signals.values())
    for method, message in (
        (Method("detailed", (term,), gives=("bonus", "returns")), "details of the credit must hold 'bonus'"),
        (replace(get_method("mine"), options={"broken": True}), "details of the credit must give 'returns' as finite"),
        (
            Method("grpo", prepare=lambda batch, run: torch.ones(3)),
            r"prepare must return a mapping of \[\], got Tensor",
        ),
        (Method("grpo", prepare=lambda batch, run: {"turn_rewards": returns}, gives=("turn_rewards",)), None),
    ):
        named("other", method)
        with trainer(tmp_path / "b", credit="other") as run:
            if message is None:
                assert torch.equal(run.phase(batch, 0).inputs.turn_rewards, returns)
            else:
                with pytest.raises((TypeError, ValueError), match=message):
                    run.phase(batch, 0)


def test_the_policy_is_not_asked_while_the_teachers_weights_are_in_its_place(tmp_path):
    options = {"teacher": "ema", "ema_rate": 0.5}
    batch = make_batch(usable(play(tiny_model(), TASKS, 0)))
    with trainer(tmp_path, credit="agent_opsd", credit_options=options) as run:
        run.phase(batch, 0)
        door, rows = run.run, (batch.prompts, batch.responses)
        calls = (
            lambda: door.score(*rows),
            lambda: door.own_scores(),
            lambda: door.rollout([]),
            lambda: door.sample(batch.prompts[:1], [(1,)]),
        )
        with door.weights("teacher"):
            door.score(*rows, weights="teacher")
            for call in calls:
                with pytest.raises(ValueError, match="the policy must not be asked while others' weights"):
                    call()
        assert all(call() is not None for call in calls)
        with pytest.raises(ValueError, match=r"weights must be .* got 'reference'"):
            door.sample(batch.prompts[:1], [(1,)], weights="reference")


@pytest.mark.parametrize("name", ["values", "a.b", "", 3])
def test_a_module_whose_name_torch_does_not_take_is_named(tmp_path, name):
    register_method("mine")(lambda: Method("grpo", modules=lambda size: {name: torch.nn.Linear(size, 1)}))
    with pytest.raises(ValueError, match=f"mine: modules must have names that are identifiers .*got {name!r}; rename"):
        trainer(tmp_path, credit="mine")


def test_the_context_that_prepare_asks_for_is_checked_at_the_start(tmp_path):
    register_method("mine")(lambda: Method("grpo", prepare=lambda *_: None, teacher=Teacher(context="hnit")))
    register_method("unsaid")(lambda: Method("grpo", prepare=lambda batch, run: run.teacher_prompts() and None))
    with pytest.raises(ValueError, match=r"must be a context of the suite 'toy'.*got 'hnit'; did you mean 'hint'"):
        trainer(tmp_path, Named(num_tasks=8), credit="mine")
    with trainer(tmp_path, credit="unsaid") as run, pytest.raises(ValueError, match="unsaid: teacher must be named"):
        run.phase(make_batch([]), 0)


def test_a_context_of_ones_own_gives_a_list(tmp_path):
    for answer, got in ((None, "NoneType"), ("abc", "str")):
        options = {"teacher_context": lambda batch, run, answer=answer: answer}
        message = f"the teacher's context must give a list of texts, got {got}"
        with (
            trainer(tmp_path, credit="agent_opsd", credit_options=options) as run,
            pytest.raises(TypeError, match=message),
        ):
            run.phase(make_batch([]), 0)


def test_a_provider_of_several_is_found_by_each_and_gives_nothing_twice():
    provides("mood", "temper")(lambda batch, run: {})
    term = LossTerm("pull", reads=("temper",), function=lambda batch: -batch.logprobs)
    named("mine", Method("grpo", (term,)))
    assert ("mood", "temper") in [provider.names for provider in get_method("mine").providers]
    named("mine", Method("align_opsd", prepare=lambda batch, run: None, gives=("teacher_logprobs",)))
    with pytest.raises(ValueError, match="gives of mine must not hold 'teacher_logprobs', which the provider of 'corr"):
        get_method("mine")


def test_another_weight_of_the_policy_gradient_is_noticed_on_resume(tmp_path):
    named("mine", Method("grpo"))
    with trainer(tmp_path, credit="mine") as run:
        run.save()
    named("mine", Method("grpo", policy_weight=0.5))
    with (
        trainer(tmp_path, credit="mine") as run,
        pytest.raises(ValueError, match=r"method\.policy_weight: 1.0 -> 0.5"),
    ):
        run.resume(True)


def test_a_teacher_is_named_once(tmp_path):
    settings = config(tmp_path, credit="agent_opsd", credit_options={"teacher": "ema"})
    with pytest.raises(ValueError, match="teacher_model must be left out where credit_options name a teacher"):
        GRPOTrainer(tiny_model(), tiny_tokenizer(), SUITE, settings, teacher_model=tiny_model(7))


def test_a_term_that_reads_the_reference_of_a_run_without_one_is_refused_before_the_first_rollout(tmp_path):
    term = LossTerm("pull", reads=("ref_logprobs",), function=lambda batch: -batch.logprobs)
    register_method("mine")(lambda: Method("grpo", (term,)))
    with trainer(tmp_path, credit="mine", beta=0.0) as run, pytest.raises(ValueError, match="set beta above 0"):
        run.train()
    assert run.collector.stats.generation_seconds == 0


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


@pytest.mark.parametrize(
    "name", ["last_turns", "rare_turns", "likely", "next_turn", "critic", "hint_gain", "imitate_the_surest"]
)
def test_the_documented_methods_train_by_name(tmp_path, monkeypatch, name):
    page = (Path(__file__).resolve().parents[2] / "docs" / "adding_a_method.md").read_text()
    for number, block in enumerate(re.findall(r"```python\n(.*?)```", page, re.DOTALL)):
        module = types.ModuleType(f"adding_a_method_{number}")
        monkeypatch.setitem(sys.modules, module.__name__, module)
        exec(compile(block, module.__name__, "exec", dont_inherit=True), vars(module))
    with trainer(tmp_path, ToySuite(num_tasks=8, lenient=True), credit=name, warmup_steps=0) as run:
        metrics = run.train_step()
    assert metrics["train/optimizer_steps"] == 4


def test_processes_fit_posterior_credit_together():
    inputs = random_batch(2, groups=4, rollouts=6)
    whole = get_credit("posterior", outcome_discount=0.9)
    parts = [inputs.group_index < 2, inputs.group_index >= 2, None]  # a process without a turn
    batches = [None if keep is None else trajectories_of(inputs, keep) for keep in parts]
    options = {"use": "teacher+anchors", "outcome_discount": 0.9}
    told = [None if batch is None else facts_of(batch, **options) for batch in batches]
    settle = get_method("posterior").settle
    for place, (keep, batch) in enumerate(zip(parts, batches, strict=True)):
        given = []
        run = types.SimpleNamespace(
            num_processes=3,
            accelerator=types.SimpleNamespace(process_index=place),
            all_gather=lambda values, given=given: given.extend(values) or list(told),
        )
        credit = settle(whole, batch, run)
        [own] = given  # what this process tells the others is what they were told above
        assert (own is None) == (batch is None)
        if batch is not None:
            assert all(torch.equal(getattr(own, name), value) for name, value in vars(told[place]).items())
        if batch is not None:
            expected = whole(inputs).advantages[keep[inputs.trajectory_ids]]
            torch.testing.assert_close(credit(batch).advantages, expected, rtol=0, atol=1e-9)
    assert settle(whole, inputs, types.SimpleNamespace(num_processes=1)) is whole
