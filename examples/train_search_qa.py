"""Train a model to answer questions with a search engine, with turn-level credit.

Without arguments: two worlds are generated that share no name, a policy of under a million parameters
(examples/assets/search_qa_tiny, made by examples/warm_start_search_qa.py) is trained with AgentOPSD on questions about
one of them on two CPU cores, and success on questions about the other one is printed before and after. Passages are
searched with BM25 in process. Nothing is downloaded.

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

import common
from policies import resolve_policy
from tiny_search.worlds import make_suite as embedded_suite

from turncredit.envs.search_qa import TRAIN_SOURCES, SearchQASuite, load_questions

EMBEDDED = Path(__file__).parent / "assets" / "search_qa_tiny"

# the papers' settings (docs/equations.md#policy-objective); Search-QA scripts use a tenth of the usual KL coefficient
OFFICIAL = {
    "output_dir": "outputs/search_qa",
    "credit": "agent_opsd",
    "num_tasks": 128,
    "max_prompt_length": 4096,
    "beta": 0.001,
}

# a named model on a generated world
GENERATED = {"output_dir": "outputs/search_qa", "credit": "agent_opsd", "max_steps": 20, "num_tasks": 8, "beta": 0.001}

# the embedded policy on generated worlds: small numbers, a large step; prompt and response fit into 512 positions
TINY = common.EMBEDDED_SETTINGS | {
    "output_dir": "outputs/search_qa",
    "credit": "agent_opsd",
    "max_completion_length": 12,
    "max_prompt_length": 500,
    "num_workers": 0,
}


def make_suite(args: argparse.Namespace) -> SearchQASuite:
    """Generated worlds, or nq and hotpotqa for training and every dataset of --eval-data for evaluation."""
    if args.data is None and common.is_embedded(args):
        return embedded_suite(
            privileged=args.privileged or "facts", max_turns=args.max_turns, num_eval=args.num_eval_questions
        )
    privileged = args.privileged or "skills"
    limits = {"eval": args.num_eval_questions}
    if args.data is None:
        return SearchQASuite(retriever=args.retriever, privileged=privileged, max_turns=args.max_turns, limits=limits)
    questions = {
        "train": load_questions(args.data, data_sources=TRAIN_SOURCES),
        "eval": load_questions(args.eval_data),
    }
    return SearchQASuite(
        questions, retriever=args.retriever, privileged=privileged, max_turns=args.max_turns, limits=limits
    )


def main() -> None:
    parser = common.make_parser(__doc__)
    parser.add_argument("--eval-data", help="questions of the evaluation panel, with --data")
    parser.add_argument("--retriever", help="address of a server with Search-R1's API; needed with --data")
    parser.add_argument("--privileged", choices=("facts", "skills", "answer", "both", "none"))
    parser.add_argument("--max-turns", type=int, default=4)
    parser.add_argument("--num-eval-questions", type=int, help="size of the panel: 120 without --model, else 64")
    args = parser.parse_args()
    output_dir = common.given_options(args).get("output_dir", OFFICIAL["output_dir"])
    resolve_policy(args, EMBEDDED, "search_qa", output_dir)
    embedded = common.is_embedded(args)
    if args.data is not None and (embedded or args.eval_data is None or args.retriever is None):
        parser.error("--data needs --model of another policy than the embedded one, --eval-data and --retriever")
    if embedded and (args.retriever is not None or args.privileged not in (None, "facts", "none")):
        parser.error(
            "--retriever and --privileged other than facts and none need --model: the embedded policy was "
            "taught words of its own worlds only"
        )
    args.num_eval_questions = args.num_eval_questions or (120 if embedded else 64)
    settings = OFFICIAL if args.data is not None else TINY if embedded else GENERATED
    config = common.make_config(args, settings | {"num_eval_tasks": args.num_eval_questions})
    common.run(args, make_suite(args), config, EMBEDDED)


if __name__ == "__main__":
    main()
