"""AgentOPSD's credit in TRL's GRPOTrainer, on a game of three turns; about a minute on one CPU core.

A safe opens to three digits, said one a turn, and only the whole code is rewarded. The policy, a Qwen2 of 60,000 random
parameters, first learns to copy a code that it is told and to guess without; then TRL trains it without being told. The
teacher of AgentOPSD is the same policy with the column `hint` ahead of its prompt. Needs pip install "turncredit[trl]".

    python examples/trl_agent_credit.py                # prints success over the first and the last updates
    python examples/trl_agent_credit.py --credit grpo  # the same loop, every turn credited alike
"""

from __future__ import annotations

import argparse
import random
from typing import Any

import torch
from datasets import Dataset
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast, PrinterCallback, Qwen2Config, Qwen2ForCausalLM
from trl import GRPOConfig, GRPOTrainer  # pyright: ignore[reportMissingImports, reportPrivateImportUsage]

from turncredit.trainers.adapters import TurnCredit, TurnCreditMixin

DIGITS, PLACES = "0123", ("first", "second", "third")
WORDS = ["<pad>", "<unk>", "<end>", "<user>", "<assistant>", "<tool>", "safe", "code", *PLACES, *DIGITS]
TEMPLATE = (
    "{% for message in messages %}<{{ message.role }}> {{ message.content }}"
    "{% for call in message.tool_calls or [] %} {{ call.function.name }} {{ call.function.arguments }}{% endfor %}"
    " <end> {% endfor %}{% if add_generation_prompt %}<assistant>{% endif %}"
)
# whatever the policy says is a call of the environment's one tool
CALLS = {
    "defaults": {"role": "assistant", "content": ""},
    "start_anchor": "<assistant>",
    "fields": {
        "tool_calls": {
            "close": "<end>",
            "repeats": True,
            "content": "text",
            "transform": {"type": "function", "function": {"name": "dial", "arguments": {"digit": "{content}"}}},
        }
    },
}


class Safe:
    """TRL's environment: its public method is the tool, its answer names the next place of the code."""

    def reset(self, **columns: Any) -> None:
        self.dialled = 0

    def dial(self, digit: str) -> str:
        """Dial a digit.

        Args:
            digit: the digit.
        """
        self.dialled += 1
        return PLACES[self.dialled]


def opened(completions: list[Any], code: list[str], **columns: Any) -> list[float]:
    """Reward: 1 where the digits of all turns are the code."""
    said = [
        [call["function"]["arguments"]["digit"] for message in messages for call in message.get("tool_calls") or []]
        for messages in completions
    ]
    return [float(digits == right.split()) for digits, right in zip(said, code, strict=True)]


class Trainer(TurnCreditMixin, GRPOTrainer):
    """TRL's loop with our advantages."""


def policy() -> tuple[Qwen2ForCausalLM, PreTrainedTokenizerFast]:
    """A random Qwen2 and a tokenizer of a word a token."""
    words = Tokenizer(models.WordLevel({word: index for index, word in enumerate(WORDS)}, unk_token="<unk>"))
    words.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    special = {"pad_token": "<pad>", "unk_token": "<unk>", "eos_token": "<end>"}
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=words, padding_side="left", **special)
    tokenizer.chat_template, tokenizer.response_template = TEMPLATE, CALLS
    sizes: Any = {"hidden_size": 48, "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 4}
    config = Qwen2Config(vocab_size=len(WORDS), num_key_value_heads=4, pad_token_id=0, eos_token_id=2, **sizes)
    return Qwen2ForCausalLM(config), tokenizer


def learn_to_copy(model: Qwen2ForCausalLM, tokenizer: PreTrainedTokenizerFast, steps: int) -> None:
    """Imitation of made-up codes, told in half of the dialogues: what a teacher needs, and nothing about the safe."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    says, end = WORDS.index("<assistant>"), WORDS.index("<end>")
    for _ in range(steps):
        dialogues = []
        for row in range(64):
            code = random.choices(DIGITS, k=3)
            told = f"code {' '.join(code)}\n\n" if row % 2 else ""
            messages = [{"role": "user", "content": f"{told}safe {PLACES[0]}"}]
            for place, digit in enumerate(code):
                messages.append({"role": "assistant", "content": digit})
                messages += [{"role": "tool", "content": word} for word in PLACES[place + 1 : place + 2]]
            dialogues.append(messages)
        batch: Any = tokenizer.apply_chat_template(dialogues, padding=True, return_tensors="pt", return_dict=True)
        ids = batch["input_ids"]
        speaks = torch.zeros_like(ids, dtype=torch.bool)
        speaks[:, 1:] |= ids[:, :-1] == says
        speaks[:, 2:] |= (ids[:, 2:] == end) & speaks[:, 1:-1]
        model(**batch, labels=ids.masked_fill(~speaks, -100)).loss.backward()
        optimizer.step()
        optimizer.zero_grad()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--credit", default="agent_opsd", help="a name of turncredit.credit.list_credits()")
    parser.add_argument("--updates", type=int, default=60)
    parser.add_argument("--imitation", type=int, default=300, help="steps of the warm start")
    parser.add_argument("--lr", type=float, default=1e-3)
    parser.add_argument("--ent", type=float, default=0.0)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--output-dir", default="outputs/trl_agent_credit")
    args = parser.parse_args()
    random.seed(args.seed)
    torch.manual_seed(args.seed)
    model, tokenizer = policy()
    learn_to_copy(model, tokenizer, args.imitation)
    code = " ".join(random.choices(DIGITS, k=len(PLACES)))
    row = {"prompt": [{"role": "user", "content": f"safe {PLACES[0]}"}], "code": code, "hint": f"code {code}"}
    config = GRPOConfig(
        args.output_dir,
        max_steps=args.updates,
        per_device_train_batch_size=96,
        num_generations=32,
        max_completion_length=40,
        max_tool_calling_iterations=len(PLACES) - 1,
        generation_kwargs={"max_new_tokens": 2},
        learning_rate=args.lr,
        entropy_coef=args.ent,
        lr_scheduler_type="constant",
        loss_type="grpo",
        gradient_checkpointing=False,
        bf16=False,
        use_cpu=not torch.cuda.is_available(),
        disable_tqdm=True,
        logging_steps=1,
        save_strategy="no",
        report_to="none",
        seed=args.seed,
    )
    # a method without a teacher takes no hint
    needs_teacher = args.credit not in ("grpo", "dr_grpo", "faded_grpo")
    plan = TurnCredit(args.credit, privileged="hint" if needs_teacher else None)
    trainer = Trainer(
        model,
        opened,
        config,
        Dataset.from_list([row] * 3),
        processing_class=tokenizer,
        environment_factory=Safe,
        turn_credit=plan,
    )
    trainer.remove_callback(PrinterCallback)
    trainer.train()
    rewards = [line["reward"] for line in trainer.state.log_history if "reward" in line]
    tenth = max(len(rewards) // 10, 1)
    first, last = (sum(part) / tenth for part in (rewards[:tenth], rewards[-tenth:]))
    print(f"{args.credit}: opened {first:.2f} over the first {tenth} updates, {last:.2f} over the last {tenth}")


if __name__ == "__main__":
    main()
