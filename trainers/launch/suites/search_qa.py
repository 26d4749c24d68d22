"""Search-QA to train on: generated worlds, or question files and a retrieval server with a model."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any

from ..benchmark import EMBEDDED_SETTINGS, Benchmark, embedded_policy
from ..flags import refuse_given

if TYPE_CHECKING:
    from ....envs.search_qa import SearchQASuite


def settings(args: argparse.Namespace) -> dict[str, Any]:
    """Of the embedded policy; or of the papers, whose Search-QA runs use a tenth of the usual KL coefficient."""
    from ....envs.search_qa.compact import BUDGETS

    if args.data is None:
        refuse_given(args, ["eval_data"], "be given with --data: generated worlds have questions of their own")
    elif args.embedded or args.eval_data is None or args.retriever is None:
        raise ValueError("--data needs --model of another policy than the embedded one, --eval-data and --retriever")
    if args.embedded and (args.retriever is not None or args.privileged not in (None, "facts", "none")):
        raise ValueError(
            "--retriever and --privileged other than facts and none need --model: the embedded policy was "
            "taught words of its own worlds only"
        )
    args.num_eval_questions = args.num_eval_questions or (120 if args.embedded else 64)
    common = {"credit": "agent_opsd", "num_eval_tasks": args.num_eval_questions}
    if args.embedded:
        return {**EMBEDDED_SETTINGS, **BUDGETS, **common, "num_workers": 0}
    if args.data is None:
        return common | {"beta": 0.001, "max_steps": 20, "num_tasks": 8}
    return common | {"beta": 0.001, "num_tasks": 128, "max_prompt_length": 4096}


def make_suite(args: argparse.Namespace) -> SearchQASuite:
    """Generated worlds, or nq and hotpotqa for training and every dataset of --eval-data for evaluation."""
    from ....envs.search_qa import TRAIN_SOURCES, SearchQASuite, load_questions
    from ....envs.search_qa.compact import compact_suite

    if args.embedded:
        privileged = args.privileged or "facts"
        return compact_suite(privileged=privileged, max_turns=args.max_turns, num_eval=args.num_eval_questions)
    questions = None
    if args.data is not None:
        train = load_questions(args.data, data_sources=TRAIN_SOURCES)
        questions = {"train": train, "eval": load_questions(args.eval_data)}
    return SearchQASuite(
        questions,
        retriever=args.retriever,
        privileged=args.privileged or "skills",
        max_turns=args.max_turns,
        limits={"eval": args.num_eval_questions},
    )


def add_flags(parser: argparse.ArgumentParser) -> None:
    """Flags of the benchmark's own."""
    add = parser.add_argument_group("search_qa").add_argument
    add("--eval-data", help="questions of the evaluation panel, with --data")
    add("--retriever", help="address of a server with Search-R1's API; needed with --data")
    add("--privileged", choices=("facts", "skills", "answer", "both", "none"), help="what the teacher reads")
    add("--max-turns", type=int, default=4, help="turns per episode (default: 4)")
    add("--num-eval-questions", type=int, help="size of the panel: 120 without --model, else 64")


BENCHMARK = Benchmark(
    "search_qa",
    make_suite,
    settings,
    add_flags,
    about="questions answered with a search engine",
    panel_flag="--num-eval-questions",
    extra="search",
    modules=("bm25s", "Stemmer"),
    embedded=embedded_policy("search_qa"),
)
