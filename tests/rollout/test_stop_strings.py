import time

import pytest
import torch
from helpers.text_tokenizers import KINDS, byte_level_tokenizer
from helpers.tiny import tiny_model, tiny_tokenizer
from helpers.toy import ToySuite
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from turncredit.rollout import RolloutCollector, SamplingConfig, StopReason
from turncredit.rollout.sampling import Sampler, StopWatch, response_uniforms
from turncredit.rollout.stop_strings import tokens_ending, vocabulary_texts


def stopped(tokenizer, stop_strings, ids):
    """How many of `ids` are sampled before the watch ends the row."""
    watch = StopWatch(
        lambda part: tokenizer.decode(list(part), skip_special_tokens=False, clean_up_tokenization_spaces=False),
        tokens_ending(tokenizer, stop_strings, len(tokenizer)),
        2,
        [len(ids) + 1],
        stop_strings,
        [tokenizer.eos_token_id],
    )
    for length in range(1, len(ids) + 1):
        if bool(watch(torch.tensor([[0, 0, *ids[:length]]]), None)[0]):
            return length, watch.ends[0][1]
    return None, None


STOPS = ["</action>", "red ", "\n", "\n\n", "\t", "!\n", "。", "門 ", "go 😀", "é", "door", "d d", "</action>\n"]
BEFORE = ["say ", "門を開ける😀", "😀 " * 20, "é" * 30]
CASES = [(before, stop) for before in BEFORE for stop in STOPS if stop not in before]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("before", "stop"), CASES)
def test_a_response_ends_right_after_the_token_that_completes_a_stop_string(kind, before, stop):
    tokenizer = KINDS[kind]()
    ids = tokenizer.encode(f"{before}{stop}doors and more doors", add_special_tokens=False)
    decode = lambda part: tokenizer.decode(part, skip_special_tokens=False)  # noqa: E731
    wanted = next(length for length in range(1, len(ids) + 1) if stop in decode(ids[:length]))
    assert stopped(tokenizer, (stop,), ids) == (wanted, StopReason.STOP_STRING)


@pytest.mark.parametrize("kind", KINDS)
def test_text_without_the_stop_string_goes_on(kind):
    tokenizer = KINDS[kind]()
    ids = tokenizer.encode("門 red\tdoor </actio> 😀 n", add_special_tokens=False)
    assert stopped(tokenizer, ("</action>", "red ", "\n", "。"), ids) == (None, None)


def test_the_tokens_that_may_end_a_stop_string_are_few_where_it_is_ascii():
    tokenizer = byte_level_tokenizer()
    texts = vocabulary_texts(tokenizer)
    flags = tokens_ending(tokenizer, (" ",), len(tokenizer))
    assert [index for index, text in texts.items() if " " in text] == flags.nonzero().flatten().tolist()
    assert 0 < int(flags.sum()) < 100
    assert int(tokens_ending(tokenizer, (), len(tokenizer)).sum()) == 0


def test_a_large_vocabulary_is_decoded_once_and_fast():
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    entries = dict.fromkeys(alphabet)
    number = 0
    while len(entries) < 150_000:
        entries[f"w{number:x}"] = None
        number += 1
    model = models.BPE(vocab={entry: index for index, entry in enumerate(entries)}, merges=[])
    backend = Tokenizer(model)
    backend.pre_tokenizer, backend.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=backend)
    clock = time.perf_counter()
    first = vocabulary_texts(tokenizer)
    assert time.perf_counter() - clock < 5  # 0.6 s alone; the machine may be shared
    assert vocabulary_texts(tokenizer) is first
    assert len(first) == 150_000


def test_a_plain_string_is_one_stop_string_and_an_empty_one_is_refused():
    def make(stops):
        return Sampler(tiny_model(), tiny_tokenizer(), stop_strings=stops)

    assert make("</action>").stop_strings == ("</action>",)
    assert make(["red", "green"]).stop_strings == ("red", "green")
    with pytest.raises(ValueError, match="stop_strings must not be empty"):
        make(("</action>", ""))
    with pytest.raises(ValueError, match="stop_strings must not be empty"):
        make("")
    for wrong in (None, 3, ("a", 3), ("a", None)):
        with pytest.raises(TypeError, match="stop_strings must be a tuple of strings"):
            make(wrong)


def test_a_suite_may_name_its_stop_string_as_a_plain_string():
    suite = ToySuite(stop_strings="</action>")
    with RolloutCollector(tiny_model(), tiny_tokenizer(), suite, SamplingConfig(), num_workers=0) as rollouts:
        assert rollouts.sampler.stop_strings == ("</action>",)


def test_a_stop_string_of_several_tokens_ends_the_response_that_completes_it():
    tokenizer = tiny_tokenizer()
    config = SamplingConfig(max_completion_length=24)
    prompts, seeds = [[3, 9, 2, 4]] * 200, [(0, i) for i in range(200)]
    free = Sampler(tiny_model(initializer_range=0.05), tokenizer, eos_token_ids=()).sample(prompts, config, seeds)
    texts = [tokenizer.decode(sample.ids[:k]) for sample in free for k in range(1, 25)]
    pair = max(
        (f"{a} {b}" for a in ("say", "red", "key", "door") for b in ("one", "room", "blue", "open")),
        key=lambda words: sum(text.endswith(words) for text in texts),
    )
    sampler = Sampler(tiny_model(initializer_range=0.05), tokenizer, stop_strings=(pair,), eos_token_ids=())
    ended = sampler.sample(prompts, config, seeds)
    reached = 0
    for whole, cut in zip(free, ended, strict=True):
        ends = [k for k in range(1, 25) if pair in tokenizer.decode(whole.ids[:k])]
        assert cut.ids == whole.ids[: ends[0] if ends else 24]
        assert cut.stop_reason is (StopReason.STOP_STRING if ends else StopReason.LENGTH)
        reached += bool(ends)
    assert reached > 0


def test_uniforms_differ_by_every_part_of_the_seed_and_by_turn():
    base = (0, 3, "task", 1, 2)
    others = [(1, 3, "task", 1, 2), (0, 4, "task", 1, 2), (0, 3, "tasks", 1, 2), (0, 3, "task", 2, 2)]
    others += [(0, 3, "task", 1, 3), ("teacher", *base)]
    draws = [response_uniforms(seed, 8).tolist() for seed in [base, *others]]
    assert len({tuple(row) for row in draws}) == len(draws)


def test_the_collector_draws_other_uniforms_for_every_turn_rollout_and_step():
    seen = []

    class Recorded(Sampler):
        def sample(self, prompts, config, seeds, **options):
            seen.extend(seed for seed in seeds if seed != ("trial",))
            return super().sample(prompts, config, seeds, **options)

    with RolloutCollector(tiny_model(), tiny_tokenizer(), ToySuite(), SamplingConfig(), num_workers=0) as rollouts:
        rollouts.sampler = Recorded(rollouts.sampler.model, rollouts.tokenizer, stop_strings=("</action>",))
        config = SamplingConfig(max_completion_length=4)
        for step in (0, 1):
            rollouts.collect(ToySuite().tasks("train"), 2, seed=7, step=step, sampling=config)
    assert len(seen) == len(set(seen)) > 32
    assert len({response_uniforms(seed, 1)[0] for seed in seen}) == len(seen)
    assert {seed[:2] for seed in seen} == {(7, 0), (7, 1)}
    assert {seed[4] for seed in seen} == {0, 1, 2, 3}
