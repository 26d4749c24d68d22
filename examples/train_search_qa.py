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

from pathlib import Path

from turncredit.trainers.launch import main, make_parser
from turncredit.trainers.launch.suites.search_qa import add_flags, make_suite, settings

EMBEDDED = Path(__file__).parent / "assets" / "search_qa_tiny"

if __name__ == "__main__":
    parser = make_parser(__doc__)
    add_flags(parser)
    main("search_qa", make_suite, settings, parser=parser, embedded=EMBEDDED)
