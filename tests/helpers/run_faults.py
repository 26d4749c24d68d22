"""Small runs that are hurt on purpose, each in a process of its own: python run_faults.py FOLDER FAULT...

A fault is ``MOMENT:SIGNAL``, sent in the third of five updates, or ``disk``. The processes are forked from one that has
imported everything; the outcome of each is printed as a JSON line.
"""

from __future__ import annotations

import contextlib
import json
import os
import resource
import signal
import sys
from pathlib import Path
from typing import Any

import torch

import turncredit.trainers.checkpoint as checkpoint
import turncredit.trainers.update as update
from helpers.tiny import tiny_model, tiny_tokenizer
from helpers.toy import ToyEnv, ToySuite
from turncredit.rollout import SamplingConfig
from turncredit.trainers import GRPOCallback, GRPOConfig, GRPOTrainer

MOMENTS = ("generation", "environment", "scoring", "update", "saving")
SUITE = ToySuite(num_tasks=8, lenient=True)


def config(folder: Path, **changes: Any) -> GRPOConfig:
    settings: dict[str, Any] = {
        "output_dir": str(folder),
        "max_steps": 5,
        "num_tasks": 4,
        "num_generations": 4,
        "num_workers": 0,
        "credit": "step_opsd",
        "learning_rate": 1e-2,
        "beta": 0.01,
        "eval_steps": 3,
        "seed": 1,
        "num_eval_tasks": 3,
        "save_steps": 1,
        "sampling": SamplingConfig(max_completion_length=6),
    }
    return GRPOConfig(**{**settings, **changes})


def hurt_at(moment: str, run: GRPOTrainer, how: signal.Signals) -> None:
    """Arrange that this process gets the signal at that moment of the third update (or while saving after it)."""

    def wrap(owner: Any, name: str) -> None:
        original = getattr(owner, name)

        def hurting(*args: Any, **kwargs: Any) -> Any:
            if run.step == (3 if moment == "saving" else 2):
                os.kill(os.getpid(), how)
            return original(*args, **kwargs)

        setattr(owner, name, hurting)

    if moment == "generation":
        wrap(run.collector.sampler.model, "generate")
    elif moment == "environment":
        wrap(ToyEnv, "step")
    elif moment == "scoring":
        wrap(run, "phase")
    elif moment == "update":
        wrap(update, "apply_gradients")
    elif moment == "saving":
        wrap(checkpoint, "_digest")


class FullDisk(GRPOCallback):
    """After the second update no file may grow beyond some kilobytes, as on a full disk; after the fourth it may."""

    def on_step_end(self, trainer: GRPOTrainer, metrics: dict[str, float]) -> None:
        small = 20_000 if trainer.step in (2, 3) else resource.RLIM_INFINITY
        resource.setrlimit(resource.RLIMIT_FSIZE, (small, resource.RLIM_INFINITY))


def hurt(folder: Path, fault: str) -> None:
    moment, _, name = fault.partition(":")
    callbacks = [FullDisk()] if moment == "disk" else []
    with GRPOTrainer(tiny_model(), tiny_tokenizer(), SUITE, config(folder), callbacks=callbacks) as run:
        if moment in MOMENTS:
            hurt_at(moment, run, signal.Signals[name])
        run.train()


def main(folder: Path, faults: list[str]) -> None:
    torch.set_num_threads(1)
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    for fault in faults:
        process = os.fork()
        if process == 0:
            code = 1
            try:
                hurt(folder / fault.replace(":", "-"), fault)
                code = 0
            except SystemExit as error:
                code = int(error.code or 0)
            finally:
                with contextlib.suppress(Exception):
                    sys.stdout.flush()
                os._exit(code)
        _, status = os.waitpid(process, 0)
        print(json.dumps({"fault": fault, "code": os.waitstatus_to_exitcode(status)}), flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:])
