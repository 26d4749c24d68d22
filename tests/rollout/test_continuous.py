"""Continuous decoding: the plain path's responses, fewer steps, and what happens when something does not fit."""

import logging
import random
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from helpers.families import build
from helpers.family_checks import tokenizer as family_tokenizer
from helpers.tiny import tiny_model, tiny_tokenizer
from helpers.toy import ToySuite

from turncredit.rollout import EpisodeStart, RolloutCollector, SamplingConfig, StopReason
from turncredit.rollout.continuous import ContinuousGenerator
from turncredit.rollout.generator import BatchGenerator, FunctionGenerator, GenerationRequest, answers_of
from turncredit.rollout.sampling import Sample, Sampler

TOKENIZER = tiny_tokenizer()
TASKS = ToySuite(num_tasks=8).tasks("train")
SETTINGS = {
    "plain": SamplingConfig(max_completion_length=30),
    "warm": SamplingConfig(max_completion_length=20, temperature=0.7, top_k=5, top_p=0.9),
    "greedy": SamplingConfig(max_completion_length=20, temperature=0.0),
    "budgets": SamplingConfig(max_completion_length=20, max_trajectory_tokens=25, max_prompt_length=10),
}


class Growing(ToySuite):
    """A chat that only grows: every prompt begins with the last one and what was said."""

    def messages(self, task, history, observation):
        messages = []
        for entry in history:
            messages += [{"role": "user", "content": entry.observation}, {"role": "raw", "content": entry.response}]
        return [*messages, {"role": "user", "content": observation.text}]


def growing_tokenizer():
    tokenizer = tiny_tokenizer()
    tokenizer.chat_template = (
        "{% for m in messages %}{% if m['role'] == 'raw' %} {{ m['content'] }} {% else %}<user> {{ m['content'] }} "
        "<end> <assistant>{% endif %}{% endfor %}"
    )
    return tokenizer


def play(suite=None, sampling=SETTINGS["plain"], model=None, tokenizer=TOKENIZER, group=3, **options):
    settings = {"num_envs": 10, "num_workers": 0, **options}
    with RolloutCollector(model or tiny_model(), tokenizer, suite or ToySuite(), sampling, **settings) as rollouts:
        return rollouts.collect(TASKS, group, seed=5), rollouts.generator


def assert_alike(ours, theirs, tolerance=1e-5):
    """Everything is equal but the last bits of the log-probs."""
    for one, other in zip(ours, theirs, strict=True):
        for mine, its in zip(one.turns, other.turns, strict=True):
            assert mine.logprobs == pytest.approx(its.logprobs, abs=tolerance)
            assert replace(mine, logprobs=its.logprobs) == its
        assert replace(one, turns=other.turns) == other


@pytest.mark.parametrize("name", SETTINGS)
@pytest.mark.parametrize("suite", [ToySuite(), ToySuite(lenient=True, needed=1)])
def test_trajectories_are_those_of_the_plain_engine(name, suite):
    ours, engine = play(suite, SETTINGS[name])
    theirs, plain = play(suite, SETTINGS[name], continuous_batching=False)
    assert (type(engine), type(plain)) == (ContinuousGenerator, BatchGenerator)
    assert_alike(ours, theirs)
    assert engine.stats.decode_steps < plain.stats.decode_steps
    assert engine.stats.prefill_tokens < plain.stats.prefill_tokens


def test_the_schedule_is_one_of_seed_and_data_alone():
    """Bit for bit with workers and without, up to rounding with other numbers of slots."""
    ours, _ = play()
    assert play()[0] == ours
    assert play(num_workers=2)[0] == ours
    for options in ({"num_envs": 1}, {"num_envs": 24, "generation_batch_size": 5}, {"num_envs": 3}):
        assert_alike(play(**options)[0], ours)


def test_episodes_that_start_behind_recorded_turns():
    played = play()[0]
    starts = [EpisodeStart.at_turn(t, min(turn, len(t.turns) - 1)) for t in played for turn in (1,)]
    with RolloutCollector(
        tiny_model(), TOKENIZER, ToySuite(), SETTINGS["plain"], num_envs=4, num_workers=0
    ) as rollouts:
        again = rollouts.collect_starts(starts, seed=5)
    assert_alike([replace(t, replayed=0) for t in again], played)


def test_only_new_tokens_of_a_growing_chat_are_computed():
    tokenizer = growing_tokenizer()
    played, engine = play(Growing(needed=9), tokenizer=tokenizer, group=1)
    theirs, plain = play(Growing(needed=9), tokenizer=tokenizer, group=1, continuous_batching=False)
    assert_alike(played, theirs)
    most = 0
    for trajectory in played:
        held = ()
        for turn in trajectory.turns:
            same = [one == other for one, other in zip(held, turn.prompt_ids[:-1], strict=False)]
            most += len(turn.prompt_ids) - (same.index(False) if False in same else len(same))
            held = (*turn.prompt_ids, *turn.response_ids[:-1])  # the last token sampled was never read
    assert engine.stats.prefill_tokens <= most < plain.stats.prefill_tokens / 2
    assert engine.stats.prefill_tokens + engine.stats.prefill_saved == plain.stats.prefill_tokens


def generators(model, tokenizer=None, **options):
    sampler = Sampler(model, tokenizer or TOKENIZER, eos_token_ids=())
    return ContinuousGenerator(sampler, **options), BatchGenerator(sampler)


def test_alike_prompts_that_join_together_are_computed_once():
    engine, _ = generators(tiny_model())
    prompt = tuple(range(3, 23))
    requests = [GenerationRequest(prompt, 3, (index,)) for index in range(8)]
    answers_of(engine, requests, SamplingConfig(), slots=8)
    assert (engine.stats.prefill_tokens, engine.stats.prefill_saved) == (20, 140)
    other = (*range(3, 13), 4, 5)
    answers_of(engine, [*requests, GenerationRequest(other, 3, (9,))], SamplingConfig(), slots=1)
    assert engine.stats.prefill_tokens == 20 + 20 + 7 + 2  # one slot keeps the prompt; then 10 of 12 tokens


def steps_by_counting(lengths, slots):
    """A plain simulation: successors join once ended rows have idled for two steps of all, or nothing runs."""
    waiting, running, ended, idled, steps, due = list(lengths), [], 0, 0, 0, True
    while waiting or running or ended:
        if due:
            joining, waiting = waiting[: slots - len(running)], waiting[slots - len(running) :]
            ended, idled = joining.count(1), 0
            running += [length - 1 for length in joining if length > 1]
        if running:
            steps += 1
            ended += running.count(1)
            running = [length - 1 for length in running if length > 1]
        idled += ended
        due = ended and (not running or idled >= 2 * (len(running) + ended))
    return steps


def test_slots_stay_full_where_lengths_are_those_of_agents():
    draw = random.Random(0)
    lengths = [min(128, max(1, round(15 * 2.718 ** draw.gauss(0, 0.8)))) for _ in range(96)]
    requests = [GenerationRequest((3 + i % 9, 5), length, (i,)) for i, length in enumerate(lengths)]
    engine, plain = generators(tiny_model())
    ours = answers_of(engine, requests, SamplingConfig(), slots=16)
    theirs = answers_of(plain, requests, SamplingConfig(), slots=16)
    assert [sample.ids for sample in ours] == [sample.ids for sample in theirs]
    assert [len(sample.ids) for sample in ours] == lengths
    assert {sample.stop_reason for sample in ours} == {StopReason.LENGTH}
    assert engine.stats.decode_steps == steps_by_counting(lengths, 16)
    assert engine.stats.decode_steps * 1.8 < plain.stats.decode_steps
    assert engine.stats.decoded_rows < 1.25 * (sum(lengths) - len(lengths))


LONG = tuple(range(3, 43))
PROMPTS = [tuple(range(3, 9)), (5, 9, 40), (7,) * 11, tuple(range(3, 9)), LONG]
FAMILIES = {
    "mistral": ("MistralForCausalLM", {}),  # windows of 4 tokens
    "gemma2": ("Gemma2ForCausalLM", {}),
    "gemma3_text": ("Gemma3ForCausalLM", {}),
    "qwen2": (
        "Qwen2ForCausalLM",
        {"use_sliding_window": True, "layer_types": ["sliding_attention", "full_attention"], "num_hidden_layers": 2},
    ),
    "gpt2": ("GPT2LMHeadModel", {}),
    "deepseek_v3": ("DeepseekV3ForCausalLM", {}),
}


def turns(engine, count, config):
    """Episodes of three turns, whose prompts grow by what was said."""
    said = {}

    def feed(ended):
        joining = []
        for request, sample in ended:
            said[request.key] = sample
            index, turn = request.key
            if turn < 2:
                grown = (*request.prompt, *sample.ids, 11, 12)
                seed = (index, turn + 1)
                joining.append(GenerationRequest(grown, 6, seed, lineage=index, key=(index, turn + 1)))
        if not said:
            joining += [
                GenerationRequest(PROMPTS[index % 5], 4 + index, (index, 0), lineage=index, key=(index, 0))
                for index in range(count)
            ]
        return joining

    engine.stream(feed, config, slots=count)
    return [said[key] for key in sorted(said)]


@pytest.mark.parametrize("family", FAMILIES)
def test_windows_caps_and_mixed_layers(family):
    name, changes = FAMILIES[family]
    model = build(family, name, **changes)
    engine, plain = generators(model, family_tokenizer())
    assert engine.fits, family
    ours, theirs = (turns(one, 6, SamplingConfig(temperature=0.7)) for one in (engine, plain))
    assert [sample.ids for sample in ours] == [sample.ids for sample in theirs]
    for one, other in zip(ours, theirs, strict=True):
        assert one.logprobs == pytest.approx(other.logprobs, abs=5e-5)
    assert engine.stats.prefill_saved > 0


@pytest.mark.parametrize(
    ("family", "name", "told"),
    [
        ("mamba", "MambaForCausalLM", "layers must be of the kinds"),
        ("bloom", "BloomForCausalLM", "its forward takes no position_ids"),
        ("gpt_neo", "GPTNeoForCausalLM", "whose own tables count places"),
    ],
)
def test_models_it_cannot_run_are_generated_in_batches_and_named(family, name, told, caplog):
    model = build(family, name)
    engine, plain = generators(model, family_tokenizer())
    requests = [GenerationRequest(prompt, 5, (index,)) for index, prompt in enumerate(PROMPTS)]
    with caplog.at_level(logging.WARNING):
        ours = answers_of(engine, requests, SamplingConfig(), slots=3)
    assert any(name in record.message and told in record.message for record in caplog.records), caplog.text
    assert ours == answers_of(plain, requests, SamplingConfig(), slots=3)


def test_a_model_that_samples_something_else_than_its_forward_is_found_out(monkeypatch, caplog):
    monkeypatch.setattr("turncredit.rollout.decoding.attention_masks", lambda model, visible, *positions: ~visible)
    engine, _ = generators(tiny_model())
    with caplog.at_level(logging.WARNING):
        assert not engine.fits
    assert "Qwen2ForCausalLM is generated in batches" in caplog.text
    assert "nats off" in caplog.text


def test_an_adapter():
    peft = pytest.importorskip("peft")
    torch.manual_seed(0)
    config = peft.LoraConfig(r=4, target_modules=["q_proj", "v_proj"], init_lora_weights=False)
    model = peft.get_peft_model(tiny_model(), config).eval()
    assert_alike(play(model=model)[0], play(model=model, continuous_batching=False)[0])
    assert play(model=model)[0] != play()[0]


def test_shapes_that_recur_change_nothing():
    model = build("qwen2", "Qwen2ForCausalLM")
    (padded, _), (engine, _) = (generators(model, family_tokenizer(), **more) for more in ({"multiples": (8, 64)}, {}))
    shapes = set()
    model.register_forward_pre_hook(
        lambda module, args, kwargs: (
            shapes.add((*kwargs["input_ids"].shape, kwargs["attention_mask"].shape[-1]))
            if kwargs.get("attention_mask") is not None and kwargs["input_ids"].shape[1] == 1
            else None
        ),
        with_kwargs=True,
    )
    assert padded.fits
    shapes.clear()
    ours = turns(padded, 6, SamplingConfig())
    assert {(rows % 8, width % 64) for rows, _, width in shapes} == {(0, 0)}
    assert [sample.ids for sample in ours] == [sample.ids for sample in turns(engine, 6, SamplingConfig())]


def test_an_error_of_the_caller_leaves_the_model_as_it_was():
    model = tiny_model()
    model.train()
    before = model.generation_config
    engine, _ = generators(model)

    class Broken(KeyboardInterrupt):
        pass

    def feed(ended):
        assert torch.is_grad_enabled()
        if ended:
            raise Broken
        return [GenerationRequest((3, 4), 4, (0,))]

    with pytest.raises(Broken):
        engine.stream(feed, SamplingConfig(), slots=2)
    assert model.training
    assert model.generation_config is before
    answers = answers_of(engine, [GenerationRequest((3, 4), 4, (0,))], SamplingConfig(), slots=2)
    assert len(answers[0].ids) == 4


def test_requests_without_a_prompt_or_a_budget_are_named():
    engine, _ = generators(tiny_model())
    for request in (GenerationRequest((), 4, (0,)), GenerationRequest((3,), 0, (0,))):
        with pytest.raises(ValueError, match="ContinuousGenerator: requests must have a prompt and a positive budget"):
            answers_of(engine, [request], SamplingConfig(), slots=1)
    assert answers_of(engine, [], SamplingConfig(), slots=1) == []


def test_a_process_without_requests_keeps_in_step_with_the_others():
    """The others prefill twice and decode three times; then this one plays, and they are idle."""
    asked = []
    script = [[1, 1], [0, 1], [1, 1], [0, 0]]

    def agree(counts):
        asked.append(list(counts))
        return [max(pair) for pair in zip(script.pop(0), counts, strict=True)] if script else list(counts)

    model = tiny_model()
    engine, _ = generators(model, agree=agree)
    saved, script[:] = script[:], []
    assert engine.fits
    script[:], passes = saved, []
    asked.clear()
    model.register_forward_hook(lambda *call: passes.append(1))
    assert answers_of(engine, [], SamplingConfig(), slots=2) == []
    assert asked == [[0, 0]] * 4
    assert len(passes) == 5
    [sample] = answers_of(engine, [GenerationRequest((3, 4), 4, (0,))], SamplingConfig(), slots=2)
    assert len(sample.ids) == 4
    assert asked[4:] == [[1, 1], [0, 1], [0, 1], [0, 0]]


def test_processes_in_step_take_the_same_engine():
    """Rounding may let the trial pass on one process and fail on another."""
    engine, _ = generators(tiny_model(), agree=lambda counts: [1] if len(counts) == 1 else list(counts))
    assert not engine.fits


def test_another_engine_takes_the_models_place():
    """A served engine that has the same weights gives the same trajectories."""
    model = tiny_model()
    sampler = Sampler(model, TOKENIZER, stop_strings=("</action>",))
    batches = []

    def answer(requests, sampling):
        batches.append(len(requests))
        rows = ([request.prompt for request in requests], sampling, [request.seed for request in requests])
        return sampler.sample(*rows, budgets=[request.budget for request in requests])

    served, engine = play(generator=FunctionGenerator(answer))
    assert isinstance(engine, FunctionGenerator)
    assert max(batches) == 10
    assert_alike(served, play(model=model)[0])
    with pytest.raises(ValueError, match="FunctionGenerator: answer must give one sample per request, got 0 for 10"):
        play(generator=FunctionGenerator(lambda requests, sampling: []))


def test_an_engine_that_leaves_requests_unanswered_is_named():
    class Lazy:
        def stream(self, feed, sampling, *, slots):
            feed([])

    with pytest.raises(ValueError, match="every request must be answered before it returns"):
        play(generator=Lazy())


class Impatient:
    """Hands answers over one at a time, and asks for more in between."""

    def __init__(self, answer):
        self.answer = answer

    def stream(self, feed, sampling, *, slots):
        requests = feed([])
        while requests:
            request = requests.pop(0)
            requests += feed([])
            requests += feed([(request, sample) for sample in self.answer(request)])


ANSWER = Sample(tuple(TOKENIZER("<action> red </action>")["input_ids"]), (-1.0,) * 3, StopReason.STOP_STRING)


def test_an_engine_may_ask_for_requests_while_all_slots_play():
    played, _ = play(generator=Impatient(lambda request: [ANSWER]), num_envs=2)
    assert len(played) == 24
    assert all(turn.response_ids == ANSWER.ids for trajectory in played for turn in trajectory.turns)


@pytest.mark.parametrize(
    ("answers", "told"),
    [
        ([], "every request must be answered before it returns"),
        ([ANSWER, ANSWER], "every request must be answered once, got an answer to request"),
        ([replace(ANSWER, ids=())], "samples must have 1 to 30 ids"),
        ([replace(ANSWER, ids=ANSWER.ids * 11, logprobs=(-1.0,) * 33)], "budget.* got 33 ids"),
        ([replace(ANSWER, logprobs=(-1.0,))], "got 3 ids and 1 log-probs"),
        ([replace(ANSWER, logprobs=(0.9, 0.9, 0.9))], "log-probs must be at most 0, got 0.9"),
    ],
)
def test_another_engines_faults_are_named(answers, told):
    engine = Impatient(lambda request: answers)
    with pytest.raises(ValueError, match=told):
        play(generator=engine)
    with pytest.raises(ValueError, match=told):
        answers_of(engine, [GenerationRequest((3, 4), 30, (0,))], SamplingConfig(), slots=2)


def test_the_example_of_the_page_runs():
    page = (Path(__file__).parents[2] / "docs" / "generation.md").read_text(encoding="utf-8")
    asked = []

    class Client:
        def complete(self, prompts, max_tokens, temperature):
            asked.append((len(prompts), set(max_tokens), temperature))
            ids = TOKENIZER("<action> red </action>")["input_ids"]
            return [{"ids": ids, "logprobs": [-1.0] * len(ids), "reason": "stop_string"} for _ in prompts]

    names = {"client": Client(), "model": tiny_model(), "tokenizer": TOKENIZER, "suite": ToySuite()}
    exec(page.split("```python\n")[1].split("```")[0], names)
    names["collector"].close()
    assert [t.success for t in names["trajectories"]] == [1.0, 0.0, 0.0, 0.0]
    assert asked == [(4, {512}, 1.0)] * 2 + [(3, {512}, 1.0)] * 2


def test_another_model_is_asked_here_though_the_policy_is_served():
    served = FunctionGenerator(lambda requests, sampling: [])
    other = tiny_model(seed=1)
    with RolloutCollector(tiny_model(), TOKENIZER, ToySuite(), num_workers=0, generator=served) as rollouts:
        asking = rollouts.asking(other)
        assert rollouts.generator is served
        assert isinstance(asking.generator, ContinuousGenerator)
        assert asking.sampler.model is other
        [sample] = asking.sample([(3, 4, 5)], SamplingConfig(max_completion_length=3), [(1,)])
    [expected] = Sampler(other, TOKENIZER, stop_strings=("</action>",)).sample(
        [(3, 4, 5)], SamplingConfig(max_completion_length=3), [(1,)]
    )
    assert sample.ids == expected.ids
