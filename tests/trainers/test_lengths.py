"""Rows and positions in a whole update: learned positions raise an IndexError where a row is longer."""

import pytest
from helpers.run_faults import config
from helpers.tiny import tiny_tokenizer
from helpers.toy import ToySuite
from transformers import GPT2Config, GPT2LMHeadModel

from turncredit.rollout import SamplingConfig
from turncredit.trainers import GRPOTrainer
from turncredit.trainers.encoder import HashingEncoder


class LongHint(ToySuite):
    def privileged_context(self, task):
        return "hint say red " * 12


def gpt2(positions):
    return GPT2LMHeadModel(GPT2Config(vocab_size=23, n_positions=positions, n_embd=32, n_layer=1, n_head=2))


def trainer(folder, positions, credit, **options):
    sampling = SamplingConfig(max_completion_length=6, max_prompt_length=26)
    settings = config(folder, credit=credit, sampling=sampling, save_steps=0, **options)
    suite = LongHint(num_tasks=8, lenient=True)
    return GRPOTrainer(gpt2(positions), tiny_tokenizer(), suite, settings, encoder=HashingEncoder())


@pytest.mark.parametrize("credit", ["agent_opsd", "align_opsd"])
def test_a_teachers_prompt_that_leaves_no_room_costs_its_gap_and_nothing_else(tmp_path, credit):
    with trainer(tmp_path, 32, credit) as run:
        metrics = run.train_step()
    assert metrics["teacher/rows"] == 0
    assert metrics["teacher/over_length_rows"] > 0
    assert metrics["train/optimizer_steps"] == 1


def test_a_generating_teachers_budget_counts(tmp_path):
    with pytest.raises(ValueError, match=r"lengths must be at most 32 \(rows of transformer.wpe\), got 26 \+ 7 = 33"):
        trainer(tmp_path, 32, "align_opsd", credit_options={"teacher_max_completion_length": 7})
