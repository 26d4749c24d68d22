"""Write the two files the notebook reads: trajectories of a key-door process as text, and their teacher's scores.

    python docs/notebooks/make_key_door.py

The process is ``turncredit.credit.lab.synthetic.key_door``, so every turn's exact advantage is known and stored too.
"""

from __future__ import annotations

import json
from pathlib import Path

import torch

from turncredit.credit.lab.synthetic import SyntheticBatch, Teacher, key_door, synthetic_batch
from turncredit.rollout.io import save_trajectories
from turncredit.rollout.types import StopReason, Trajectory, Turn

HERE = Path(__file__).resolve().parent
# What is seen, what is thought, and the three moves in the order the process defines them.
WALK, LOOK = ("walk on", "stroll on", "look around"), "look around"
SCENES = {
    "walk": ("A long corridor.", "nothing here so keep going to the end", WALK),
    "key": ("A brass key lies on the floor.", "a key might open some door later on", ("take key", "leave key", LOOK)),
    "held": ("A corridor. The key is in your hand.", "holding the key now find the door", WALK),
    "empty": ("A corridor. Your hands are empty.", "no key in hand but there may be a door", WALK),
    "door": ("A locked door. The key is in your hand.", "the key should fit this", ("unlock door", LOOK, "kick door")),
    "shut": ("A locked door. Your hands are empty.", "no key so try force", ("push door", LOOK, "kick door")),
}


def make_turn(batch: SyntheticBatch, row: int, vocabulary: dict[str, int]) -> Turn:
    trajectory, turn = (int(index[row]) for index in batch.episodes.turns)
    state = int(batch.episodes.states[trajectory, turn])
    seen, thought, moves = SCENES[batch.episodes.process.names[state].split("_")[0]]
    action = moves[(int(batch.episodes.actions[trajectory, turn]) - state) % 3]
    count = int(batch.inputs.token_counts[row])
    thinking = (thought.split() * 3)[: count - 2]
    words = [*thinking, *action.split()]
    prompt = {"role": "user", "content": f"Find the way out. {seen} What do you do?"}

    def encode(text: list[str]) -> tuple[int, ...]:
        return tuple(vocabulary.setdefault(word, len(vocabulary)) for word in text)

    return Turn(
        prompt_ids=encode(prompt["content"].split()),
        response_ids=encode(words),
        logprobs=tuple(batch.inputs.student_logprobs[row, :count].tolist()),
        messages=(prompt,),
        response=" ".join(words),
        thinking=" ".join(thinking),
        action=action,
        observation=seen,
        admissible_actions=moves,
        reward=float(batch.episodes.rewards[trajectory, turn]),
        stop_reason=StopReason.EOS,
        thinking_tokens=(0, count - 2),
        action_tokens=(count - 2, count),
    )


def main() -> None:
    batch = synthetic_batch(
        key_door(), Teacher(noise=0.08), groups=2, group_size=6, generator=torch.Generator().manual_seed(7)
    )
    inputs, vocabulary, trajectories = batch.inputs, {}, []
    for index in range(inputs.num_trajectories):
        rows = (inputs.trajectory_ids == index).nonzero().flatten().tolist()
        reward = float(inputs.rewards[index])
        group = int(inputs.group_ids[index])
        trajectories.append(
            Trajectory(
                task_id=f"key-door-{group}", task_type="key_door", group_id=group, rollout_index=index % 6,
                turns=tuple(make_turn(batch, row, vocabulary) for row in rows), reward=reward, success=reward,
                stop_reason=StopReason.SUCCESS if reward else StopReason.DONE,
            )
        )  # fmt: skip
    save_trajectories(trajectories, HERE / "key_door.jsonl")
    assert inputs.teacher_logprobs is not None
    scores = {
        "teacher_logprobs": [
            [round(value, 5) for value in line[mask].tolist()]
            for line, mask in zip(inputs.teacher_logprobs, inputs.response_mask, strict=True)
        ],
        "exact_advantages": [round(value, 6) for value in batch.advantages.tolist()],
    }
    (HERE / "key_door_scores.json").write_text(json.dumps(scores) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
