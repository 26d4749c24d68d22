"""Train an agent to play ALFWorld text games with turn-level credit.

Without arguments: games are generated, a policy of under a million parameters (examples/assets/alfworld_tiny, made by
examples/warm_start.py) is trained with AgentOPSD on two CPU cores, and success on held-out games is printed before and
after. Nothing is downloaded.

    python examples/train_alfworld.py
    python examples/train_alfworld.py --credit grpo --output-dir outputs/grpo
    python examples/train_alfworld.py --eval-only
    python examples/train_alfworld.py --eval-only --resume

The last one evaluates the newest checkpoint of the output folder. A model of one's own on generated games gets the
papers' settings; the embedded policy keeps its own, and its compact prompts, on official games too.

With a model and the official games (ALFWORLD_DATA or --data), on as many processes as Accelerate starts:

    accelerate launch examples/train_alfworld.py --model Qwen/Qwen2.5-3B-Instruct --data "$ALFWORLD_DATA" \
        --credit agent_opsd --mixed-precision bf16
"""

from __future__ import annotations

from pathlib import Path

from turncredit.trainers.launch import main, make_parser
from turncredit.trainers.launch.suites.alfworld import add_flags, make_suite, settings

EMBEDDED = Path(__file__).parent / "assets" / "alfworld_tiny"

if __name__ == "__main__":
    parser = make_parser(__doc__)
    add_flags(parser)
    main("alfworld", make_suite, settings, parser=parser, embedded=EMBEDDED)
