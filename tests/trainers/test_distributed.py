"""Two CPU processes, plain and under DeepSpeed ZeRO: one process's numbers, exact resume, no hang, ordinary files."""

from pathlib import Path

import pytest
import torch
from accelerate.commands.launch import _validate_launch_command, launch_command_parser
from accelerate.utils.launch import prepare_deepspeed_cmd_env
from helpers.processes import finish, start
from helpers.run_distributed import METHODS, OPTIONS, SUITE, config, lines, methods, saved
from helpers.tiny import tiny_model, tiny_tokenizer
from transformers import AutoModelForCausalLM

from turncredit.trainers import GRPOTrainer

SCRIPT = Path(__file__).parents[1] / "helpers" / "run_distributed.py"
OWN = ("time/", "rollout/workers", "train/failed_saves")  # what a process says of itself
SPREAD = ("score/padding_share", "score/shared_share", "train/padding_share", "train/shared_share")
"""What follows from the rows that lie on one process."""


@pytest.fixture(scope="module")
def alone(tmp_path_factory):
    """The same four updates of every method on one process."""
    folder = tmp_path_factory.mktemp("alone")
    for method in METHODS:
        settings = config(folder / method, credit=method, **OPTIONS.get(method, {}))
        with GRPOTrainer(tiny_model(), tiny_tokenizer(), SUITE, settings) as run:
            run.train()
    return folder


def assert_like_one_process(got: Path, expected: Path) -> None:
    first, second = lines(got), lines(expected)
    assert [line["step"] for line in first] == [line["step"] for line in second] == [0, 1, 2, 3, 4]
    compared = 0
    for ours, theirs in zip(first, second, strict=True):
        assert ours.keys() == theirs.keys()
        for name in ours:
            if not name.startswith(OWN + SPREAD):
                assert ours[name] == pytest.approx(theirs[name], rel=2e-4, abs=2e-6), (name, ours["step"])
                compared += 1
    assert compared >= 100
    AutoModelForCausalLM.from_pretrained(got / "checkpoints" / "step-000004" / "model")
    weights, reference = saved(got), saved(expected)
    for name, value in reference.items():
        torch.testing.assert_close(weights[name], value, rtol=1e-3, atol=2e-4)


def run_pair(stage: int | str, folder: Path, **environment: str) -> None:
    for code, output in finish(start(SCRIPT, str(stage), str(folder), **environment), timeout=400):
        assert code == 0, output[-4000:]
        assert "finished" in output


@pytest.mark.slow
def test_two_plain_processes(tmp_path, alone):
    run_pair(-1, tmp_path, ACCELERATE_USE_CPU="true")
    for method in methods(-1):
        assert_like_one_process(tmp_path / method / "whole", alone / method)


def test_the_second_node_is_launched_where_it_is():
    """Accelerate's default for several nodes is pdsh, which starts everything from one and needs a host file."""
    parser = launch_command_parser()
    file = str(Path(__file__).parents[2] / "examples" / "accelerate" / "two_nodes.yaml")
    where = ["--machine_rank", "1", "--main_process_ip", "10.0.0.1", "--main_process_port", "29511"]
    arguments, _, _ = _validate_launch_command(parser.parse_args(["--config_file", file, *where, "train.py"]))
    arguments.deepspeed_fields_from_accelerate_config = ""
    command, _ = prepare_deepspeed_cmd_env(arguments)
    assert command is None, "torchrun's arguments instead of a command of DeepSpeed's launcher"
    assert (arguments.nnodes, arguments.nproc_per_node, arguments.node_rank) == ("2", "8", 1)


@pytest.mark.slow
@pytest.mark.parametrize("stage", [1, 2, 3])
def test_two_processes_under_zero(tmp_path, alone, stage):
    pytest.importorskip("deepspeed")
    run_pair(stage, tmp_path, DS_ACCELERATOR="cpu")
    for method in methods(stage):
        assert_like_one_process(tmp_path / method / "whole", alone / method)
    if stage == 3:  # weights that stay sharded while generating sample the same
        assert (
            lines(tmp_path / "synced")[-1]["rollout/success"]
            == lines(tmp_path / "align_opsd" / "whole")[-1]["rollout/success"]
        )
        sharded, whole = saved(tmp_path / "synced"), saved(tmp_path / "align_opsd" / "whole")
        assert all(torch.equal(sharded[name], whole[name]) for name in whole)


@pytest.mark.slow
def test_bf16_under_zero_3_with_an_adapter_and_a_loss_that_is_not_finite(tmp_path):
    pytest.importorskip("deepspeed")
    pytest.importorskip("peft")
    run_pair("half", tmp_path, DS_ACCELERATOR="cpu")
