"""Write the two files that bring_your_traces.ipynb reads: episodes as another tool logs them, and a hint for each task.

    python docs/notebooks/make_house_traces.py        (needs the alfworld extra)

The embedded policy plays generated games; what is kept are prompts, responses and returns alone, as a line per episode.
"""

from __future__ import annotations

import json
import tempfile
from pathlib import Path

from transformers import AutoModelForCausalLM, AutoTokenizer

from turncredit.envs.alfworld.compact import BUDGETS, MAX_TURNS, compact_suite, generate_once
from turncredit.rollout import RolloutCollector, SamplingConfig

HERE = Path(__file__).resolve().parent
POLICY = HERE.parents[1] / "examples" / "assets" / "alfworld_tiny"
TASKS, ATTEMPTS = 3, 6


def main() -> None:
    model, tokenizer = (kind.from_pretrained(POLICY) for kind in (AutoModelForCausalLM, AutoTokenizer))
    with tempfile.TemporaryDirectory() as games:
        limits = generate_once(games, {"train": 24})
        suite = compact_suite(games, {"train": "train"}, privileged="hint", max_turns=MAX_TURNS, limits=limits)
        tasks = list(suite.tasks("train"))
        collector = RolloutCollector(model, tokenizer, suite, SamplingConfig(**BUDGETS), num_workers=0)
        played = collector.collect(tasks, ATTEMPTS, seed=1)
        collector.close()
        hints = [suite.privileged_context(task) for task in tasks]
    groups = [[t for t in played if t.task_id == task.id] for task in tasks]
    mixed = [place for place, group in enumerate(groups) if 2 <= sum(t.success for t in group) <= ATTEMPTS - 2]
    lines, told = [], {}
    for number, place in enumerate(mixed[:TASKS]):
        told[f"house {number}"] = hints[place]
        for trajectory in groups[place]:
            steps = [{"prompt": turn.messages[0]["content"], "response": turn.response} for turn in trajectory.turns]
            lines.append({"task_id": f"house {number}", "steps": steps, "reward": trajectory.reward})
    (HERE / "houses.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
    (HERE / "house_hints.json").write_text(json.dumps(told, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
