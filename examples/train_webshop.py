"""Train an agent to shop in WebShop with turn-level credit.

Without arguments: a shop is generated, a policy of under a million parameters (examples/assets/webshop_tiny, made by
examples/warm_start.py) is trained with AgentOPSD on two CPU cores, and success on held-out goals is printed before and
after. Nothing is downloaded.

    python examples/train_webshop.py
    python examples/train_webshop.py --credit grpo --output-dir outputs/webshop_grpo
    python examples/train_webshop.py --eval-only
    python examples/train_webshop.py --eval-only --resume

Any instruct model with a chat template, in the generated shop or, on as many processes as Accelerate starts, with the
official files (WEBSHOP_DATA or --data):

    python examples/train_webshop.py --model Qwen/Qwen2.5-0.5B-Instruct --max-steps 20
    accelerate launch examples/train_webshop.py --model Qwen/Qwen2.5-3B-Instruct --data "$WEBSHOP_DATA" \
        --credit agent_opsd --mixed-precision bf16
"""

from __future__ import annotations

from pathlib import Path

from turncredit.trainers.launch import main, make_parser
from turncredit.trainers.launch.suites.webshop import add_flags, make_suite, settings

EMBEDDED = Path(__file__).parent / "assets" / "webshop_tiny"

if __name__ == "__main__":
    parser = make_parser(__doc__)
    add_flags(parser)
    main("webshop", make_suite, settings, parser=parser, embedded=EMBEDDED)
