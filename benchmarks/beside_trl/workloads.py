"""What both sides train on: policies, prompts, the small environment and its reward, written into a folder once.

Started by benchmarks/trl.py as a script, it writes them: ``workloads.py JOB`` with ``{"folder", "names", "prompts"}``.
"""

from __future__ import annotations

import json
import random
from dataclasses import dataclass
from pathlib import Path
from typing import Any

EMBEDDED = Path(__file__).resolve().parents[2] / "examples" / "assets" / "alfworld_tiny"
TEMPLATE = (
    "{% for message in messages %}<{{ message['role'] }}> {{ message['content'] }}"
    "{% for call in message.tool_calls or [] %} {{ call.function.name }} {{ call.function.arguments }}{% endfor %}"
    " <end> {% endfor %}{% if add_generation_prompt %}<assistant>{% endif %}"
)
SPECIAL = ("<pad>", "<unk>", "<end>", "<system>", "<user>", "<assistant>", "<tool>")
LEARNING_RATE, BETA = 1e-6, 0.01


@dataclass(frozen=True)
class Workload:
    """An update of so many tasks x rollouts, of `turns` turns of `new_tokens` at most.

    Args:
        prompt: tokens of the first prompt; 0 takes ALFWorld's first turns as the embedded policy reads them.
        observation: words of each later observation.
        vocabulary, hidden, layers, tied: of a random Qwen2, where the policy is not the embedded one.
        cold: one process of a column, and its first update alone: another one would take TRL a minute.
    """

    title: str
    tasks: int
    rollouts: int
    new_tokens: int
    turns: int = 1
    prompt: int = 0
    observation: int = 0
    vocabulary: int = 0
    hidden: int = 0
    layers: int = 0
    tied: bool = True
    cold: bool = False

    @property
    def rows(self) -> int:
        """Trajectories of an update."""
        return self.tasks * self.rollouts


def _turns(turns: int) -> Workload:
    title = f"append-only episodes of {turns} turns, observations of 80 tokens"
    sizes: dict[str, Any] = {"prompt": 80, "observation": 80, "vocabulary": 2048, "hidden": 128, "layers": 4}
    return Workload(title, 2, 4, 20, turns, **sizes, tied=False)


WORKLOADS = {
    "policy": Workload("the embedded ALFWorld policy, its real first prompts, 20 new tokens", 16, 8, 20),
    "vocabulary": Workload(
        "30M parameters, vocabulary of 151,936, 512 + 128 tokens", 2, 4, 128, 1, 512, 0, 151_936, 176, 8, cold=True
    ),
    "turns-4": _turns(4),
    "turns-8": _turns(8),
}


def observation(workload: Workload, task: int, turn: int) -> str:
    """What the environment says behind a turn: words that depend on task and turn alone."""
    return _words(workload, workload.observation, f"{task} {turn}")


def reward_of(text: str) -> float:
    """The share of vowels and even digits: no two rollouts are alike, and no policy is needed to get some."""
    return sum(letter in "aeiou02468" for letter in text) / max(len(text), 1)


def load(folder: Path) -> tuple[Any, Any, list[str]]:
    """Policy, tokenizer and user messages of a workload's folder."""
    import torch
    from transformers import AutoModelForCausalLM, PreTrainedTokenizerFast

    # AutoTokenizer would put Qwen2's own splitting in its place
    tokenizer = PreTrainedTokenizerFast.from_pretrained(folder)
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    return model, tokenizer, json.loads((folder / "prompts.json").read_text(encoding="utf-8"))


def write(folder: Path, workload: Workload, prompts: int) -> None:
    """Policy, tokenizer and so many first prompts."""
    folder.mkdir(parents=True)
    if workload.prompt:
        # <user>, <end> and <assistant> are the template's
        texts = [_words(workload, workload.prompt - 3, f"prompt {task}") for task in range(prompts)]
        _random_policy(folder, workload)
    else:
        from transformers import AutoModelForCausalLM, PreTrainedTokenizerFast

        texts = _first_turns(folder / "games", prompts)
        AutoModelForCausalLM.from_pretrained(EMBEDDED).save_pretrained(folder)
        PreTrainedTokenizerFast.from_pretrained(EMBEDDED).save_pretrained(folder)
    (folder / "prompts.json").write_text(json.dumps(texts), encoding="utf-8")


def _words(workload: Workload, count: int, seed: str) -> str:
    return words(workload.vocabulary - len(SPECIAL), count, seed)


def words(vocabulary: int, count: int, seed: str) -> str:
    """So many of the words w0, w1, .. of `word_tokenizer`, which depend on the seed alone."""
    return " ".join(f"w{number}" for number in random.Random(seed).choices(range(vocabulary), k=count))


def word_tokenizer(size: int) -> Any:
    """One word a token, so that a response reads back as the ids that were sampled; both trainers take its template."""
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    names = [*SPECIAL, *(f"w{number}" for number in range(size - len(SPECIAL)))]
    model = Tokenizer(models.WordLevel({name: index for index, name in enumerate(names)}, unk_token="<unk>"))
    model.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    special = {"pad_token": "<pad>", "unk_token": "<unk>", "eos_token": "<end>"}
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=model, **special, padding_side="left", extra_special_tokens=list(SPECIAL[3:])
    )
    tokenizer.chat_template = TEMPLATE
    return tokenizer


def _first_turns(games: Path, count: int) -> list[str]:
    """The user messages of the first turns of generated games."""
    from turncredit.envs.alfworld.compact import compact_suite, generate_once

    generate_once(games, {"train": count})
    suite = compact_suite(games, ["train"])
    env, texts = suite.make_env()(), []
    for task in suite.tasks("train"):
        texts.append(suite.messages(task, [], env.reset(task.id))[-1]["content"])
    env.close()
    return texts


def _random_policy(folder: Path, workload: Workload) -> None:
    """A Qwen2 with random weights, and its tokenizer."""
    import torch
    from transformers import Qwen2Config, Qwen2ForCausalLM

    word_tokenizer(workload.vocabulary).save_pretrained(folder)
    torch.manual_seed(0)
    config = Qwen2Config(
        vocab_size=workload.vocabulary,
        hidden_size=workload.hidden,
        intermediate_size=3 * workload.hidden,
        num_hidden_layers=workload.layers,
        num_attention_heads=4,
        num_key_value_heads=4,
        max_position_embeddings=4096,
        tie_word_embeddings=workload.tied,
        eos_token_id=2,
        pad_token_id=0,
    )
    model = Qwen2ForCausalLM(config)
    if not workload.tied:
        _never_say(model, len(SPECIAL))
    model.save_pretrained(folder)


def _never_say(model: Any, special: int) -> None:
    """Give the first ids no chance: the first entry of every hidden state is large, and only their rows read it.

    A response then says neither the end of its turn nor another control token, so that all have the same length.
    """
    model.model.embed_tokens.weight.data[:, 0] = 1.0
    head = model.lm_head.weight.data
    head[:, 0] = 0.0
    head[:special, 0] = -10.0


if __name__ == "__main__":
    from measure import read_job

    job = read_job()
    for name in job["names"]:
        write(Path(job["folder"]) / name, WORKLOADS[name], job["prompts"] * WORKLOADS[name].tasks)
