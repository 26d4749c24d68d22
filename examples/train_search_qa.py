"""Train a model to answer questions with a search engine, with turn-level credit.

Without --data, questions and passages are generated and searched with BM25 in process; a model has to be named, because
there is no embedded policy for this benchmark.

    python examples/train_search_qa.py --model Qwen/Qwen2.5-0.5B-Instruct --max-steps 20
    python examples/train_search_qa.py --model FOLDER --eval-only

With question files in Search-R1's schema and a retrieval server (python -m turncredit.envs.search_qa.server), on as
many processes as Accelerate starts:

    accelerate launch examples/train_search_qa.py --model Qwen/Qwen2.5-3B-Instruct --data train.parquet \
        --eval-data test.parquet --retriever http://127.0.0.1:8000/retrieve --mixed-precision bf16
"""

from __future__ import annotations

import argparse
from pathlib import Path

import common

from turncredit.envs.search_qa import TRAIN_SOURCES, SearchQASuite, load_questions

# the papers' settings (METHODS, section 5); the Search-QA scripts use a tenth of the usual KL coefficient
OFFICIAL = {
    "output_dir": "outputs/search_qa",
    "credit": "agent_opsd",
    "num_tasks": 128,
    "max_prompt_length": 4096,
    "beta": 0.001,
}
GENERATED = {"output_dir": "outputs/search_qa", "credit": "agent_opsd", "max_steps": 20, "num_tasks": 8, "beta": 0.001}


def make_suite(args: argparse.Namespace) -> SearchQASuite:
    """The generated world, or nq and hotpotqa for training and every dataset of --eval-data for evaluation."""
    limits = {"eval": args.num_eval_questions}
    if args.data is None:
        return SearchQASuite(
            retriever=args.retriever, privileged=args.privileged, max_turns=args.max_turns, limits=limits
        )
    questions = {
        "train": load_questions(args.data, data_sources=TRAIN_SOURCES),
        "eval": load_questions(args.eval_data),
    }
    return SearchQASuite(
        questions, retriever=args.retriever, privileged=args.privileged, max_turns=args.max_turns, limits=limits
    )


def main() -> None:
    parser = common.make_parser(__doc__)
    parser.add_argument("--eval-data", help="questions of the evaluation panel, with --data")
    parser.add_argument("--retriever", help="address of a server with Search-R1's API; needed with --data")
    parser.add_argument("--privileged", choices=("skills", "answer", "facts", "both", "none"), default="skills")
    parser.add_argument("--max-turns", type=int, default=4)
    parser.add_argument("--num-eval-questions", type=int, default=64, help="dealt from the datasets in turn")
    args = parser.parse_args()
    if args.model is None:
        parser.error("--model must be given; any instruct model with a chat template will do")
    if args.data is not None and (args.eval_data is None or args.retriever is None):
        parser.error("--data needs --eval-data and --retriever")
    defaults = (GENERATED if args.data is None else OFFICIAL) | {"num_eval_tasks": args.num_eval_questions}
    common.run(args, make_suite(args), common.make_config(args, defaults), Path(args.model))


if __name__ == "__main__":
    main()
