"""The worlds of the embedded default: training shares no name with evaluation."""

from __future__ import annotations

from functools import partial

from turncredit.envs.search_qa import Bm25Retriever, Document, SearchQASuite, generate_world
from turncredit.envs.search_qa.suite import Privileged

from .prompt import compact_messages
from .vocabulary import EVAL, PARTS, PEOPLE, TRAIN

MAX_TURNS = 4


def make_suite(
    *,
    train_seed: int = 1000,
    held_out_seed: int = 1001,
    num_eval: int = 64,
    privileged: Privileged = "facts",
    max_turns: int = MAX_TURNS,
) -> SearchQASuite:
    """Questions of one world to train on and of another one to evaluate on; one corpus holds the passages of both.

    Args:
        train_seed, held_out_seed: seeds of the two worlds.
        num_eval: size of the panel, dealt from the kinds of question in turn.
        privileged, max_turns: see `SearchQASuite`.
    """
    train = generate_world(train_seed, people=PEOPLE, part=TRAIN, parts=PARTS)
    other = generate_world(held_out_seed, people=PEOPLE, part=EVAL, parts=PARTS)
    passages = [
        Document(f"{number}", document.contents) for number, document in enumerate((*train.documents, *other.documents))
    ]
    return SearchQASuite(
        {"train": train.questions, "eval": other.questions},
        retriever=partial(Bm25Retriever, passages),
        privileged=privileged,
        max_turns=max_turns,
        limits={"eval": num_eval},
        build_messages=compact_messages,
    )


def demonstration_suite(seed: int) -> SearchQASuite:
    """One world to demonstrate: names of one part, which the seed chooses, with facts of its own."""
    world = generate_world(seed, people=PEOPLE, part=(TRAIN, EVAL)[seed % 2], parts=PARTS)
    return SearchQASuite(
        {"demonstrations": world.questions},
        retriever=partial(Bm25Retriever, world.documents),
        privileged="facts",
        max_turns=MAX_TURNS,
        build_messages=compact_messages,
    )
