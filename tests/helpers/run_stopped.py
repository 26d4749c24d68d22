"""One of two processes for tests: python run_stopped.py STAGE FOLDER; process 1 alone is interrupted in update 2."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path
from typing import Any

import torch

from helpers.run_distributed import SUITE, config, make_accelerator
from helpers.tiny import tiny_model, tiny_tokenizer
from turncredit.trainers import GRPOCallback, GRPOTrainer


class Interrupt(GRPOCallback):
    def on_rollout(self, trainer: GRPOTrainer, trajectories: Any) -> None:
        if trainer.accelerator.process_index == 1 and trainer.step == 1:
            os.kill(os.getpid(), signal.SIGINT)


def main(stage: int, folder: Path) -> None:
    torch.set_num_threads(1)
    accelerator = make_accelerator(stage)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    options = {"credit": "grpo", "eval_steps": 1}
    for resume, callbacks in ((None, [Interrupt()]), (True, [])):
        settings = config(folder, **options)
        model, tokenizer = tiny_model(), tiny_tokenizer()
        with GRPOTrainer(model, tokenizer, SUITE, settings, accelerator=accelerator, callbacks=callbacks) as run:
            try:
                run.train(resume_from=resume)
                print("trained", run.step, flush=True)
                run.save_pretrained(folder / "after")
            except KeyboardInterrupt as stop:
                print("stopped", run.step, getattr(stop, "code", None), flush=True)
    accelerator.wait_for_everyone()
    accelerator.end_training()
    print("finished", flush=True)


if __name__ == "__main__":
    main(int(sys.argv[1]), Path(sys.argv[2]))
