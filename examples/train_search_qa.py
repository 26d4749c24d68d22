"""Train a model to answer questions with a search engine, with turn-level credit.

Without arguments: two worlds are generated that share no name, a policy of under a million parameters
(examples/assets/search_qa_tiny, made by examples/warm_start.py) is trained with AgentOPSD on questions about one of
them on two CPU cores, and success on questions about the other one is printed before and after. Passages are searched
with BM25 in process. Nothing is downloaded.

    python examples/train_search_qa.py
    python examples/train_search_qa.py --credit grpo --output-dir outputs/search_qa_grpo
    python examples/train_search_qa.py --eval-only
    python examples/train_search_qa.py --eval-only --resume

With a model, on a generated world:

    python examples/train_search_qa.py --model Qwen/Qwen2.5-0.5B-Instruct --max-steps 20

With question files in Search-R1's schema and a retrieval server (python -m turncredit.envs.search_qa.server), on as
many processes as Accelerate starts:

    accelerate launch examples/train_search_qa.py --model Qwen/Qwen2.5-3B-Instruct --data train.parquet \
        --eval-data test.parquet --retriever http://127.0.0.1:8000/retrieve --mixed-precision bf16
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from turncredit.envs.search_qa import TRAIN_SOURCES, SearchQASuite, load_questions
from turncredit.envs.search_qa.compact import BUDGETS, compact_suite
from turncredit.trainers.launch import EMBEDDED_SETTINGS, main, make_parser

EMBEDDED = Path(__file__).parent / "assets" / "search_qa_tiny"


def settings(args: argparse.Namespace) -> dict[str, Any]:
    """Of the embedded policy; or of the papers, whose Search-QA runs use a tenth of the usual KL coefficient."""
    if args.data is not None and (args.embedded or args.eval_data is None or args.retriever is None):
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


if __name__ == "__main__":
    parser = make_parser(__doc__)
    parser.add_argument("--eval-data", help="questions of the evaluation panel, with --data")
    parser.add_argument("--retriever", help="address of a server with Search-R1's API; needed with --data")
    parser.add_argument("--privileged", choices=("facts", "skills", "answer", "both", "none"))
    parser.add_argument("--max-turns", type=int, default=4)
    parser.add_argument("--num-eval-questions", type=int, help="size of the panel: 120 without --model, else 64")
    main("search_qa", make_suite, settings, parser=parser, embedded=EMBEDDED)
