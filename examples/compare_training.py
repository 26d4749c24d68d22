"""Does better credit make agents learn faster? Methods by seeds on the three embedded environments.

    python examples/compare_training.py --methods grpo agent_opsd posterior --seeds 5
    python examples/compare_training.py --environments webshop search_qa --methods grpo "gigpo:outcome_discount=0.95"
    python examples/compare_training.py --methods grpo mine --import my_method.py
    python examples/compare_training.py --results docs/lab/agents_alfworld.jsonl          # tables of what was run

Every run is the command `turncredit train` (as train_alfworld.py, train_webshop.py and train_search_qa.py) in a process
of its own, with its settings for the embedded policy: learning rate, KL and all else are the same for every
method. Two run side by side with one thread each. A run leaves one line in results.jsonl; a killed panel, started
again, does what is missing and goes on with a run from its last checkpoint. Every method has the same seeds, and so the
same tasks in the same order; it is evaluated on --num-eval held-out tasks before and after. Training area: mean success
of the training rollouts over the updates. Intervals: 95%, Student's t, over seeds; a difference is taken seed by seed;
* better, ! worse than the baseline, each comparison for itself. A record made by an older commit counts as done; its
"commit" tells. A method of one's own is run again when its file has changed. About two minutes of a core a run.
"""

from __future__ import annotations

from turncredit.trainers.launch.comparison import compare
from turncredit.trainers.launch.flags import make_compare_parser

if __name__ == "__main__":
    compare(make_compare_parser(__doc__).parse_args())
