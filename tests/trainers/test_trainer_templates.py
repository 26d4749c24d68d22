"""The trainer under templates with variables, a clock and an opened thinking block."""

import pytest
from helpers.tiny import tiny_model, tiny_tokenizer
from helpers.toy import ToySuite

from turncredit.rollout import SamplingConfig, StopReason, Trajectory, Turn, load_trajectories, save_trajectories
from turncredit.trainers import GRPOCallback, GRPOConfig, GRPOTrainer
from turncredit.trainers.loggers import readable
from turncredit.trainers.methods import providers
from turncredit.trainers.methods.contexts import hindsight_text
from turncredit.trainers.records import write_completions

TEMPLATE = (
    "{% for m in messages %}<user> {{ m['content'] }} <end> {% endfor %}{% if add_generation_prompt %}<assistant>"
    "{% if not enable_thinking is defined or enable_thinking %} <think>{% endif %}"
    "{% if with_clock is defined %} {{ 'two' if strftime_now('%d') == '02' else 'one' }}{% endif %}{% endif %}"
)


class Watched(ToySuite):
    """Records what it is asked to parse; every colour is an answer."""

    def __init__(self):
        super().__init__(num_tasks=8, needed=1, lenient=True)
        self.parsed = []

    def parse(self, response):
        self.parsed.append(response)
        return super().parse(response)


def trainer(folder, suite=None, callbacks=(), **changes):
    tokenizer = tiny_tokenizer()
    tokenizer.chat_template = TEMPLATE
    settings = {
        "output_dir": str(folder),
        "max_steps": 1,
        "num_tasks": 4,
        "num_generations": 4,
        "credit": "grpo",
        "sampling": SamplingConfig(max_completion_length=8),
        "num_envs": 16,
        "num_workers": 0,
        "num_eval_tasks": 4,
    }
    config = GRPOConfig(**{**settings, **changes})
    return GRPOTrainer(tiny_model(), tokenizer, suite or Watched(), config, callbacks=callbacks)


def test_the_generating_teachers_answers_start_with_what_its_prompt_opened(tmp_path):
    for kwargs, opened in (({}, "<think>"), ({"enable_thinking": False}, "")):
        suite = Watched()
        settings = {"credit": "align_opsd", "credit_options": {"encoder": "hashing"}, "chat_template_kwargs": kwargs}
        with trainer(tmp_path, suite, **settings) as run:
            run.rollout(run.tasks_of(0))
            played = len(suite.parsed)
            run.train_step()
        texts = suite.parsed
        assert len(texts) > 2 * played + 10  # the rollouts twice, then the teacher's answers
        assert all(text.startswith(opened) for text in texts)
        assert all(text.startswith("<think>") for text in texts) == bool(opened)


def test_student_and_teacher_read_the_same_template_variables_and_clock(tmp_path, monkeypatch):
    seen = []

    class Look(GRPOCallback):
        def on_rollout(self, trainer, trajectories):
            seen.extend(turn for trajectory in trajectories for turn in trajectory.turns)

    kwargs = {"enable_thinking": False, "with_clock": True, "strftime_now": "2025-03-02"}
    with trainer(tmp_path, credit="agent_opsd", callbacks=[Look()], chat_template_kwargs=kwargs) as run:
        prompts = []
        real = providers.score_teacher
        monkeypatch.setattr(providers, "score_teacher", lambda *a, **k: prompts.extend(a[2]) or real(*a, **k))
        metrics = run.train_step()
    assert metrics["teacher/rows"] > 0
    for prompt in [*(turn.prompt_ids for turn in seen), *prompts]:
        assert run.tokenizer.convert_ids_to_tokens(list(prompt))[-2:] == ["<assistant>", "two"]


def test_resuming_with_other_template_variables_is_named(tmp_path):
    with trainer(tmp_path) as run:
        run.train()
    with (
        trainer(tmp_path, max_steps=2, chat_template_kwargs={"enable_thinking": False}) as run,
        pytest.raises(ValueError, match=r"chat_template_kwargs\.enable_thinking: absent -> False"),
    ):
        run.train(resume_from=True)


def record(text, messages):
    turn = Turn((1,), (2,), (-0.5,), messages, text, observation=text, admissible_actions=(text,))
    return Trajectory(text, text, 0, 0, (turn,), 0.0, 0.0, StopReason.DONE, failure=text)


def test_parts_and_unencodable_text_come_back_from_files_as_they_were(tmp_path):
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "門 \ud800"}]
    records = [record(f"x \udce9 {end}\x00", ({"role": "user", "content": parts},)) for end in ("", "😀", '\\"')]
    for name in ("a.jsonl", "a.jsonl.gz"):
        assert load_trajectories(save_trajectories(records, tmp_path / name)) == records


def test_readable_completions_replace_what_cannot_be_written(tmp_path):
    one = record("x \udce9", ({"role": "user", "content": "a"},))
    write_completions(tmp_path, [one], 0)
    text = (tmp_path / "completions" / "step-000001.txt").read_text(encoding="utf-8")
    assert text == readable(one).replace("\udce9", "�")


def test_a_hindsight_of_no_text_is_refused():
    turn = Turn((1,), (2,), (-0.5,), ({"role": "user", "content": "a"},), "r", observation=["a"])
    with pytest.raises(TypeError, match="observations and actions as text, got list"):
        hindsight_text(Trajectory("t", "t", 0, 0, (turn,), 1.0, 1.0, StopReason.DONE))
