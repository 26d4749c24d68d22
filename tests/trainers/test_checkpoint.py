import os
from pathlib import Path

import pytest

from turncredit.trainers.checkpoint import (
    latest_checkpoint,
    list_checkpoints,
    prune_checkpoints,
    verify_checkpoint,
    write_checkpoint,
)


def write(text: str):
    def fill(folder: Path) -> None:
        (folder / "model").mkdir()
        (folder / "model" / "weights").write_text(text)
        (folder / "state").write_text("state " + text)

    return fill


def test_a_written_checkpoint_verifies_and_is_the_latest(tmp_path):
    write_checkpoint(tmp_path, 2, write("two"))
    folder = write_checkpoint(tmp_path, 10, write("ten"))
    assert verify_checkpoint(folder) is None
    assert latest_checkpoint(tmp_path) == (folder, [])
    assert [path.name for path in list_checkpoints(tmp_path)] == ["step-000002", "step-000010"]


@pytest.mark.parametrize("damage", ["truncate", "remove", "manifest"])
def test_a_damaged_one_is_passed_over_for_the_one_before(tmp_path, damage):
    good = write_checkpoint(tmp_path, 1, write("one"))
    bad = write_checkpoint(tmp_path, 2, write("two"))
    if damage == "truncate":
        (bad / "model" / "weights").write_text("tw")
    elif damage == "remove":
        (bad / "state").unlink()
    else:
        (bad / "manifest.json").write_text("{")
    found, complaints = latest_checkpoint(tmp_path)
    assert found == good
    assert len(complaints) == 1
    assert complaints[0].startswith("step-000002: ")


def test_a_failed_write_leaves_nothing_and_harms_nothing(tmp_path):
    good = write_checkpoint(tmp_path, 1, write("one"))

    def full(folder: Path) -> None:
        (folder / "model").write_text("half")
        raise OSError(28, "No space left on device")

    with pytest.raises(OSError, match="No space"):
        write_checkpoint(tmp_path, 2, full)
    assert os.listdir(tmp_path) == [good.name]


def test_a_leftover_of_a_killed_write_is_not_a_checkpoint(tmp_path):
    (tmp_path / ".step-000005.123.tmp").mkdir()
    assert latest_checkpoint(tmp_path) == (None, [])


def test_pruning_keeps_the_newest_and_the_last_good_one(tmp_path):
    for step in range(1, 5):
        write_checkpoint(tmp_path, step, write(str(step)))
    for step in (3, 4):
        (tmp_path / f"step-{step:06d}" / "state").write_text("damaged")
    prune_checkpoints(tmp_path, 2)
    assert [path.name[-1] for path in list_checkpoints(tmp_path)] == ["2", "3", "4"]


def test_writing_again_replaces(tmp_path):
    write_checkpoint(tmp_path, 1, write("old"))
    folder = write_checkpoint(tmp_path, 1, write("new"))
    assert (folder / "state").read_text() == "state new"
    assert verify_checkpoint(folder) is None
