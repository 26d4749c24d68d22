"""Slots and workers of the vector runner: who owns what, what is told when, and what is counted."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest
from helpers import slot_fakes
from helpers.slot_fakes import Steps

from turncredit.envs import EnvFailure, VectorEnv
from turncredit.envs._process import WorkerProcess


def texts(answers):
    return {slot: getattr(a, "observation", a).text for slot, a in answers.items() if not isinstance(a, EnvFailure)}


def test_slots_are_dealt_in_runs_of_eight_and_a_small_runner_still_keeps_all_workers_busy():
    with VectorEnv(Steps, 32, num_workers=2) as envs:
        pids = [answer.info["pid"] for answer in envs.reset(dict.fromkeys(range(32), "a")).values()]
        first, second = dict.fromkeys(pids)
        assert pids == [first] * 8 + [second] * 8 + [first] * 8 + [second] * 8
    with VectorEnv(Steps, 12, num_workers=2) as envs:
        pids = [answer.info["pid"] for answer in envs.reset(dict.fromkeys(range(12), "a")).values()]
        assert [pids[0] == pid for pid in pids] == ([True] * 3 + [False] * 3) * 2


def test_there_are_no_more_workers_than_slots():
    with VectorEnv(Steps, 2, num_workers=5) as envs:
        assert len(envs.worker_pids) == 2
        assert len({answer.info["pid"] for answer in envs.reset({0: "a", 1: "b"}).values()}) == 2


def test_a_worker_whose_episodes_were_given_up_is_recycled():
    with VectorEnv(Steps, 2, num_workers=1, max_worker_rss_mb=1) as envs:
        first = envs.reset({0: "a", 1: "b"})[0].info["pid"]
        envs.step({0: "finish", 1: "x"})
        envs.release([1])
        assert envs.reset({0: "c"})[0].info["pid"] != first
        assert (envs.workers_recycled, envs.workers_replaced) == (1, 0)


@pytest.mark.parametrize("num_workers", [0, 1])
def test_a_slot_that_was_given_up_is_reset_before_it_is_stepped(num_workers):
    with VectorEnv(Steps, 3, num_workers=num_workers) as envs:
        envs.reset({0: "a", 1: "b"})
        envs.step({1: "finish"})
        envs.release(range(3))
        for slot, state in ((0, "was given up"), (1, "is over"), (2, "was never reset")):
            with pytest.raises(ValueError, match=f"got slot {slot}, whose episode {state}"):
                envs.step({slot: "x"})
        assert texts(envs.reset({0: "c"})) == {0: "c:0"}
        assert texts(envs.step({0: "x"})) == {0: "c:1"}
        with pytest.raises(ValueError, match=r"VectorEnv\.release: slot must be in 0\.\.2, got 3"):
            envs.release([3])


def test_the_loss_of_an_episode_that_was_given_up_is_not_told():
    with VectorEnv(Steps, 2, num_workers=1) as envs:
        envs.reset({0: "a", 1: "b"})
        assert envs.step({0: "die"})[0].cause == "worker_died"
        envs.release([1])
        with pytest.raises(ValueError, match="was given up"):
            envs.step({1: "x"})


@pytest.mark.parametrize("num_workers", [0, 1])
def test_an_episode_that_could_not_start_cannot_be_stepped(num_workers):
    with VectorEnv(Steps, 2, num_workers=num_workers) as envs:
        assert envs.reset({0: "broken"})[0].cause == "error"
        with pytest.raises(ValueError, match="slot 0, whose episode has failed"):
            envs.step({0: "x"})


def test_answers_come_in_the_order_asked_whoever_is_ready_first():
    with VectorEnv(Steps, 3, num_workers=3) as envs:
        envs.reset({0: "a", 1: "b", 2: "c"})
        assert list(envs.reset({2: "slow", 0: "a", 1: "b"})) == [2, 0, 1]
        assert list(texts(envs.step({1: "nap", 0: "x", 2: "x"})).items()) == [(1, "b:1"), (0, "a:1"), (2, "slow:1")]


def test_every_loss_is_told_once_in_its_place_and_its_action_goes_nowhere():
    with VectorEnv(Steps, 4, num_workers=1) as envs:
        envs.reset({0: "a", 1: "b", 2: "c"})
        assert envs.step({0: "die"})[0].cause == "worker_died"
        envs.reset({0: "d"})
        answers = envs.step({1: "die", 0: "x", 2: "die"})
        assert list(answers) == [1, 0, 2]
        assert (answers[1].cause, answers[2].cause) == ("worker_died", "worker_died")
        assert texts(answers) == {0: "d:1"}
        for slot in (1, 2):
            with pytest.raises(ValueError, match="has failed"):
                envs.step({slot: "x"})


def test_slots_without_a_running_episode_lose_nothing_with_their_worker():
    with VectorEnv(Steps, 4, num_workers=1) as envs:
        envs.reset({0: "a", 1: "b", 2: "c"})
        envs.step({1: "finish"})
        envs.step({0: "die"})
        for slot, state in ((1, "is over"), (3, "was never reset")):
            with pytest.raises(ValueError, match=state):
                envs.step({slot: "x"})
        assert envs.step({2: "x"})[2].cause == "worker_died"


def test_the_time_limit_is_that_of_the_whole_call(monkeypatch):
    from turncredit.envs import vector

    left = []

    def wait(connections, timeout):
        left.append(timeout)
        return original(connections, timeout)

    original = vector.wait
    monkeypatch.setattr(vector, "wait", wait)
    with VectorEnv(Steps, 2, num_workers=2) as envs:
        envs.reset({0: "a", 1: "b"})
        left.clear()
        envs.timeout = 0.6
        answers = envs.step({0: "nap", 1: "hang"})
        assert answers[1].cause == "timeout"
        assert len(left) >= 2
        assert left[-1] <= left[0] - (0.2 if 0 in texts(answers) else 0.0)


def test_an_interrupted_call_ends_the_workers_that_still_owe_an_answer(monkeypatch):
    def interrupt(*_):
        raise KeyboardInterrupt

    with VectorEnv(Steps, 2, num_workers=2) as envs:
        envs.reset({0: "a", 1: "b"})
        with monkeypatch.context() as patch:
            patch.setattr("turncredit.envs.vector.wait", interrupt)
            with pytest.raises(KeyboardInterrupt):
                envs.step({0: "x"})
        assert [pid is None for pid in envs.worker_pids] == [True, False]


def test_an_answer_to_a_call_that_was_interrupted_right_after_sending_is_never_taken_for_another(monkeypatch):
    def send_and_stop(worker, kind, requests):
        original(worker, kind, requests)
        raise KeyboardInterrupt

    original = WorkerProcess.send
    with VectorEnv(Steps, 1, num_workers=1) as envs:
        envs.reset({0: "a"})
        with monkeypatch.context() as patch:
            patch.setattr(WorkerProcess, "send", send_and_stop)
            with pytest.raises(KeyboardInterrupt):
                envs.step({0: "x"})
        assert envs.step({0: "x"})[0].cause == "worker_died"
        assert texts(envs.reset({0: "b"})) == {0: "b:0"}


def test_a_forked_child_leaves_the_workers_alone():
    with VectorEnv(Steps, 1, num_workers=1) as envs:
        envs.reset({0: "a"})
        child = os.fork()
        if child == 0:
            envs.close()
            os._exit(0)
        os.waitpid(child, 0)
        assert texts(envs.step({0: "x"})) == {0: "a:1"}


def test_closing_closes_the_environments_of_this_process_too():
    slot_fakes.closed.clear()
    with VectorEnv(Steps, 3, num_workers=0) as envs:
        envs.reset({0: "a", 2: "b"})
    assert slot_fakes.closed == ["a", "b"]


def test_a_worker_takes_no_signal_once_it_has_started():
    """Held back or ignored, neither may end it: the second holds for what an environment starts on its own."""
    with VectorEnv(Steps, 1, num_workers=1) as envs:
        envs.reset({0: "a"})
        pid = envs.worker_pids[0]
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
        status = dict(line.split(":\t", 1) for line in lines if ":\t" in line)
        blocked, ignored = (int(status[name], 16) for name in ("SigBlk", "SigIgn"))
        for number in (signal.SIGINT, signal.SIGTERM):
            assert ignored >> (number - 1) & 1
            assert not blocked >> (number - 1) & 1
