"""What a rollout promises, by value: the uniforms of a token, where budgets and prompts end, what is kept."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from helpers.tiny import tiny_model, tiny_tokenizer
from helpers.toy import ToyEnv, ToySuite

from turncredit.envs import Observation, StepResult, Task
from turncredit.rollout import RolloutCollector, SamplingConfig, StopReason, render_prompt
from turncredit.rollout.sampling import Sampler, response_uniforms

TOKENIZER = tiny_tokenizer()


class Monotonous(ToySuite):
    """Every prompt of every task is the same."""

    def messages(self, task, history, observation):
        return [{"role": "user", "content": "door"}]


def collect(suite, tasks, rollouts=1, sampling=None, **options):
    sampling = sampling or SamplingConfig(max_completion_length=12)
    with RolloutCollector(tiny_model(), TOKENIZER, suite, sampling, num_envs=8, num_workers=0) as collector:
        return collector.collect(tasks, rollouts, **options)


@pytest.mark.parametrize("temperature", [0.7, 1.0])
def test_every_token_is_drawn_with_the_uniform_of_its_place(temperature):
    """A plain loop: full logits of the growing sequence, the inverse of their distribution at the t-th uniform."""
    model, prompts = tiny_model(), [[3, 9, 2, 4], [3, 18, 19, 20, 9, 2, 4]]
    seeds = [(5, 1, "task", row) for row in range(2)]
    config = SamplingConfig(temperature=temperature, max_completion_length=10)
    samples = Sampler(model, TOKENIZER, eos_token_ids=()).sample(prompts, config, seeds)
    for prompt, seed, sample in zip(prompts, seeds, samples, strict=True):
        ids, logprobs = list(prompt), []
        for uniform in response_uniforms(seed, 10):
            with torch.no_grad():
                log_all = (model(torch.tensor([ids])).logits[0, -1] / temperature).log_softmax(-1)
            cumulative = np.cumsum(log_all.double().exp().numpy())
            ids.append(int(np.searchsorted(cumulative, uniform * cumulative[-1], side="right")))
            logprobs.append(float(log_all[ids[-1]]))
        assert sample.ids == tuple(ids[len(prompt) :])
        assert sample.logprobs == pytest.approx(logprobs, abs=1e-4)


def test_the_uniforms_of_turns_rollouts_tasks_updates_and_seeds_all_differ():
    """Under one prompt for everything, equal uniforms would be equal responses."""
    tasks = ToySuite().tasks("train")
    options = [{"seed": 0, "step": 0}, {"seed": 1, "step": 0}, {"seed": 0, "step": 1}]
    turns = [t for o in options for trajectory in collect(Monotonous(), tasks, 3, **o) for t in trajectory.turns]
    assert len({turn.prompt_ids for turn in turns}) == 1
    draws = [turn.response_ids for turn in turns if len(turn.response_ids) >= 6]
    assert len(draws) > 20
    assert len(set(draws)) == len(draws)


def test_a_prompt_as_long_as_its_limit_is_played():
    task = ToySuite().tasks("train")[:1]
    length = len(collect(ToySuite(), task)[0].turns[0].prompt_ids)
    (fits,) = collect(ToySuite(), task, sampling=SamplingConfig(max_completion_length=4, max_prompt_length=length))
    (over,) = collect(ToySuite(), task, sampling=SamplingConfig(max_completion_length=4, max_prompt_length=length - 1))
    assert len(fits.turns) == 1
    assert fits.stop_reason is StopReason.PROMPT_BUDGET
    assert over.turns == ()


def test_a_trajectory_spends_its_tokens_and_no_more():
    sampling = SamplingConfig(max_completion_length=5, max_trajectory_tokens=8)
    for trajectory in collect(ToySuite(), ToySuite().tasks("train"), 4, sampling):
        spent = 0
        for turn in trajectory.turns:
            assert len(turn.response_ids) <= min(5, 8 - spent)
            spent += len(turn.response_ids)
        if trajectory.stop_reason is StopReason.TOKEN_BUDGET:
            assert spent == 8


def test_messages_never_hold_the_privileged_text_that_the_prompt_showed():
    (trajectory,) = collect(ToySuite(), ToySuite().tasks("train")[:1], privileged=True)
    for turn in trajectory.turns:
        assert "hint" in TOKENIZER.decode(turn.prompt_ids)
        assert all("hint" not in message["content"] for message in turn.messages)
        assert render_prompt(TOKENIZER, turn.messages) != turn.prompt_ids


class Paid(ToyEnv):
    """Pays 1, 2, 3 for its turns and never ends."""

    def reset(self, task_id):
        self.paid = 0
        return Observation("room", ())

    def step(self, action):
        self.paid += 1
        return StepResult(
            Observation("door", ()), reward=float(self.paid), done=self.paid == 3, success=False, valid=True
        )


class PaidSuite(ToySuite):
    def make_env(self):
        return Paid


def test_the_return_adds_up_every_turn():
    (trajectory,) = collect(PaidSuite(), [Task("red-paid", "red")])
    assert [turn.reward for turn in trajectory.turns] == [1.0, 2.0, 3.0]
    assert trajectory.reward == 6.0
    assert trajectory.stop_reason is StopReason.DONE


@pytest.mark.parametrize("stop", ["say step", "one two"])
def test_a_stop_string_of_several_tokens_ends_a_response(stop):
    """A model that writes "one two say step" over and over: the stop string's last token is the response's."""
    circle = TOKENIZER("one two say step")["input_ids"]
    model = tiny_model(tie_word_embeddings=False)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.zero_()
        model.model.norm.weight.fill_(1.0)
        for place, token in enumerate(circle):
            model.model.embed_tokens.weight[token, place] = 1.0
            model.lm_head.weight[circle[(place + 1) % 4], place] = 100.0
    config = SamplingConfig(temperature=0, max_completion_length=12)
    (sample,) = Sampler(model, TOKENIZER, stop_strings=(stop,)).sample([circle[:1]], config, [("x",)])
    wanted = TOKENIZER(stop)["input_ids"]
    assert sample.stop_reason is StopReason.STOP_STRING
    assert list(sample.ids[-2:]) == wanted
    assert len(sample.ids) == {"say step": 3, "one two": 5}[stop]
