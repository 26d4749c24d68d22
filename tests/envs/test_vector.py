"""The vector runner: order, isolation, and what happens when an environment raises, dies or hangs."""

from __future__ import annotations

import functools
import gc
import importlib
import os
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest
from helpers.processes import TESTS

from turncredit.envs import EnvFailure, Observation, VectorEnv

ENV = {**os.environ, "PYTHONPATH": os.pathsep.join([TESTS, os.environ.get("PYTHONPATH", "")])}


@pytest.fixture
def fakes():
    return importlib.import_module("helpers.vector_fakes")


def texts(answers):
    return {slot: getattr(a, "observation", a).text for slot, a in answers.items()}


def alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    try:  # the leader can be a zombie while other threads of a killed process still hold its connection
        states = [path.read_text().rpartition(")")[2].split()[0] for path in Path(f"/proc/{pid}/task").glob("*/stat")]
    except FileNotFoundError:
        return alive(pid)
    return any(state != "Z" for state in states)


def gone(pids, seconds=10.0) -> bool:
    deadline = time.monotonic() + seconds
    while any(alive(pid) for pid in pids):
        if time.monotonic() > deadline:
            return False
        time.sleep(0.02)
    return True


@pytest.mark.parametrize("num_workers", [0, 1, 2, 3])
def test_every_number_of_workers_gives_the_same_episodes(fakes, num_workers):
    with VectorEnv(fakes.Counter, 3, num_workers=num_workers) as envs:
        assert texts(envs.reset({2: "c", 0: "a"})) == {2: "c:0", 0: "a:0"}
        assert texts(envs.reset({1: "b"})) == {1: "b:0"}
        assert list(texts(envs.step({1: "x", 2: "x", 0: "x"})).items()) == [(1, "b:1"), (2, "c:1"), (0, "a:1")]
        result = envs.step({2: "finish"})[2]
        assert (result.observation.text, result.reward, result.done) == ("c:2", 2.0, True)
        assert texts(envs.step({0: "x"})) == {0: "a:2"}
        assert texts(envs.reset({2: "again"})) == {2: "again:0"}
        assert envs.workers_replaced == 0


def test_episodes_share_nothing_and_environments_are_reused(fakes):
    with VectorEnv(fakes.Counter, 4, num_workers=2) as envs:
        first = envs.reset({slot: f"t{slot}" for slot in range(4)})
        envs.step({0: "x", 3: "x"})
        second = envs.reset({slot: f"u{slot}" for slot in range(4)})
        assert texts(second) == {slot: f"u{slot}:0" for slot in range(4)}
        for slot in range(4):
            assert (first[slot].info["pid"], first[slot].info["env"]) == (
                second[slot].info["pid"],
                second[slot].info["env"],
            )
        owners = {(second[slot].info["pid"], second[slot].info["env"]) for slot in range(4)}
        assert len(owners) == 4
        assert len({pid for pid, _ in owners}) == 2
        assert os.getpid() not in {pid for pid, _ in owners}
        assert not any(second[slot].info["torch"] for slot in range(4))


@pytest.mark.parametrize("num_workers", [0, 1])
def test_an_environment_that_raises_costs_its_own_episode(fakes, num_workers):
    with VectorEnv(fakes.Counter, 2, num_workers=num_workers) as envs:
        before = envs.reset({0: "a", 1: "b"})
        answers = envs.step({0: "raise", 1: "x"})
        assert isinstance(answers[0], EnvFailure)
        assert answers[0].cause == "error"
        assert "RuntimeError" in answers[0].message
        assert "the engine fell over" in answers[0].message
        assert "'raise'" in answers[0].message
        assert answers[1].observation.text == "b:1"
        with pytest.raises(ValueError, match=r"slot 0, whose episode has failed; call reset\(\{0: task_id\}\) first"):
            envs.step({0: "x"})
        after = envs.reset({0: "c"})
        assert after[0].text == "c:0"
        assert after[0].info["env"] != before[0].info["env"]
        assert envs.step({1: "x"})[1].observation.text == "b:2"
        assert envs.workers_replaced == 0


@pytest.mark.parametrize("num_workers", [0, 1])
def test_a_task_that_does_not_exist_is_a_failure_with_the_reason(fakes, num_workers):
    with VectorEnv(fakes.Counter, 2, num_workers=num_workers) as envs:
        answers = envs.reset({0: "broken", 1: "b"})
        assert answers[0].cause == "error"
        assert "no task called broken" in answers[0].message
        assert answers[1].text == "b:0"


@pytest.mark.parametrize("num_workers", [0, 1])
def test_an_environment_that_cannot_be_made_is_a_failure(fakes, num_workers):
    with VectorEnv(fakes.Unmakeable, 1, num_workers=num_workers) as envs:
        assert envs.reset({0: "a"})[0].cause == "error"
        assert "no licence" in envs.reset({0: "a"})[0].message


def test_a_worker_that_dies_costs_its_episodes_and_is_replaced(fakes):
    with VectorEnv(fakes.Counter, 4, num_workers=2) as envs:
        start = envs.reset({slot: f"t{slot}" for slot in range(4)})
        partner = next(s for s in range(1, 4) if start[s].info["pid"] == start[0].info["pid"])
        others = [s for s in range(1, 4) if s != partner]
        answers = envs.step({0: "die", **dict.fromkeys(others, "x")})
        assert answers[0].cause == "worker_died"
        assert str(start[0].info["pid"]) in answers[0].message
        assert [answers[s].observation.text for s in others] == [f"t{s}:1" for s in others]
        lost = envs.step({partner: "x", **dict.fromkeys(others, "x")})
        assert lost[partner].cause == "worker_died"
        assert [lost[s].observation.text for s in others] == [f"t{s}:2" for s in others]
        with pytest.raises(ValueError, match="has failed"):
            envs.step({partner: "x"})
        assert envs.workers_replaced == 0
        again = envs.reset({0: "n0", partner: "n1"})
        assert texts(again) == {0: "n0:0", partner: "n1:0"}
        assert again[0].info["pid"] != start[0].info["pid"]
        assert envs.workers_replaced == 1
        assert envs.step({others[0]: "x"})[others[0]].observation.text == f"t{others[0]}:3"


def test_a_worker_killed_between_calls_is_noticed_at_the_next_step(fakes):
    with VectorEnv(fakes.Counter, 2, num_workers=1) as envs:
        pid = envs.reset({0: "a", 1: "b"})[0].info["pid"]
        os.kill(pid, signal.SIGKILL)
        assert gone([pid])
        assert {answer.cause for answer in envs.step({0: "x", 1: "x"}).values()} == {"worker_died"}
        assert texts(envs.reset({0: "c"})) == {0: "c:0"}


def test_a_worker_killed_while_idle_is_replaced_without_a_failure(fakes):
    with VectorEnv(fakes.Counter, 2, num_workers=1) as envs:
        pid = envs.reset({0: "a"})[0].info["pid"]
        envs.step({0: "finish"})
        os.kill(pid, signal.SIGKILL)
        assert gone([pid])
        assert texts(envs.reset({1: "b"})) == {1: "b:0"}
        assert envs.workers_replaced == 1


def test_a_worker_killed_loses_the_other_slot_when_one_is_reset(fakes):
    with VectorEnv(fakes.Counter, 2, num_workers=1) as envs:
        pid = envs.reset({0: "a", 1: "b"})[0].info["pid"]
        os.kill(pid, signal.SIGKILL)
        assert gone([pid])
        assert texts(envs.reset({0: "c"})) == {0: "c:0"}
        assert envs.step({0: "x", 1: "x"})[1].cause == "worker_died"


def test_a_lost_slot_that_is_reset_before_it_was_told_starts_afresh(fakes):
    with VectorEnv(fakes.Counter, 2, num_workers=1) as envs:
        envs.reset({0: "a", 1: "b"})
        assert envs.step({0: "die"})[0].cause == "worker_died"
        assert texts(envs.reset({1: "d"})) == {1: "d:0"}
        assert envs.step({1: "x"})[1].observation.text == "d:1"


@pytest.mark.parametrize("where", ["reset", "step"])
def test_a_worker_that_hangs_is_killed_after_the_timeout(fakes, where):
    with VectorEnv(fakes.Counter, 2, num_workers=2, timeout=20.0) as envs:
        start = envs.reset({0: "a", 1: "b"})
        envs.timeout = 0.5
        clock = time.monotonic()
        if where == "step":
            answers = envs.step({0: "hang", 1: "x"})
            assert answers[1].observation.text == "b:1"
        else:
            answers = envs.reset({0: "hang"})
        assert answers[0].cause == "timeout"
        assert "0.5 s" in answers[0].message
        assert time.monotonic() - clock < 5.0
        assert gone([start[0].info["pid"]])
        envs.timeout = 20.0
        assert texts(envs.reset({0: "c"})) == {0: "c:0"}
        assert envs.workers_replaced == 1
        assert envs.step({1: "x"})[1].observation.text == ("b:2" if where == "step" else "b:1")


def test_workers_ignore_the_interrupt_key(fakes):
    with VectorEnv(fakes.Counter, 1, num_workers=1) as envs:
        envs.reset({0: "a"})
        assert envs.step({0: "interrupt"})[0].observation.text == "a:1"


def test_an_interrupted_call_leaves_no_stale_answers(fakes, monkeypatch):
    with VectorEnv(fakes.Counter, 2, num_workers=2) as envs:
        envs.reset({0: "a", 1: "b"})

        def interrupt(*_):
            raise KeyboardInterrupt

        with monkeypatch.context() as patch:
            patch.setattr("turncredit.envs.vector.wait", interrupt)
            with pytest.raises(KeyboardInterrupt):
                envs.step({0: "x"})
        answers = envs.step({0: "x", 1: "x"})
        assert answers[0].cause == "worker_died"
        assert answers[1].observation.text == "b:1"
        assert texts(envs.reset({0: "c"})) == {0: "c:0"}


def test_an_answer_that_cannot_be_sent_is_a_failure_of_that_slot_alone(fakes):
    with VectorEnv(fakes.Counter, 2, num_workers=1) as envs:
        envs.reset({0: "a", 1: "b"})
        answers = envs.step({0: "unpicklable", 1: "x"})
        assert answers[0].cause == "bad_result"
        assert "pickle" in answers[0].message
        assert answers[1].observation.text == "b:1"


def test_many_replacements_leak_no_file_descriptors_and_no_processes(fakes):
    with VectorEnv(fakes.Counter, 1, num_workers=1) as envs:
        envs.reset({0: "a"})
        gc.collect()
        before = len(os.listdir("/proc/self/fd"))
        pids = []
        for _ in range(6):
            pids.append(envs.reset({0: "a"})[0].info["pid"])
            assert envs.step({0: "die"})[0].cause == "worker_died"
        assert isinstance(envs.reset({0: "a"})[0], Observation)
        assert len(os.listdir("/proc/self/fd")) == before
        assert envs.workers_replaced == 6
        assert not any(Path(f"/proc/{pid}").exists() for pid in pids)


def test_a_worker_that_grew_is_recycled_when_its_episodes_are_over(fakes):
    with VectorEnv(fakes.Counter, 2, num_workers=1, max_worker_rss_mb=1) as envs:
        first = envs.reset({0: "a", 1: "b"})[0].info["pid"]
        assert envs.reset({0: "c"})[0].info["pid"] == first
        envs.step({0: "finish", 1: "x"})
        assert envs.reset({0: "c"})[0].info["pid"] == first
        envs.step({0: "finish", 1: "finish"})
        assert envs.reset({0: "d"})[0].info["pid"] != first
        assert (envs.workers_recycled, envs.workers_replaced) == (1, 0)
        assert gone([first])


def test_closing_closes_environments_and_ends_processes(fakes, tmp_path):
    log = tmp_path / "log"
    envs = VectorEnv(functools.partial(fakes.Counter, str(log)), 2, num_workers=1)
    envs.reset({0: "a", 1: "b"})
    pids = envs.worker_pids
    envs.close()
    envs.close()
    assert gone(pids)
    assert log.read_text() == "closed 1\nclosed 2\n"
    with pytest.raises(ValueError, match=r"VectorEnv\.reset: runner must be open"):
        envs.reset({0: "a"})


PROGRAM = """
    import os, signal, time
    from helpers.vector_fakes import Counter
    from turncredit.envs import VectorEnv
    envs = VectorEnv(Counter, 2, num_workers=2)
    envs.reset({{0: "a", 1: "b"}})
    print(*envs.worker_pids, flush=True)
    {ending}
"""


@pytest.mark.parametrize(
    "ending",
    ["pass", "raise SystemExit(3)", "1 / 0", "os._exit(0)", "os.kill(os.getpid(), signal.SIGKILL)"],
    ids=["end", "exit", "error", "hard exit", "kill -9"],
)
def test_no_worker_outlives_its_parent(ending):
    source = textwrap.dedent(PROGRAM).format(ending=ending)
    done = subprocess.run(
        [sys.executable, "-c", source], capture_output=True, text=True, timeout=60, check=False, env=ENV
    )
    pids = [int(word) for word in done.stdout.split()]
    assert len(pids) == 2
    assert gone(pids)


def test_a_hanging_worker_does_not_outlive_a_killed_parent():
    ending = "envs.timeout = 0.3; envs._ask = None; envs._workers[0].send('step', {0: 'hang'}); time.sleep(0.3); "
    source = textwrap.dedent(PROGRAM).format(ending=ending + "os.kill(os.getpid(), signal.SIGKILL)")
    done = subprocess.run(
        [sys.executable, "-c", source], capture_output=True, text=True, timeout=60, check=False, env=ENV
    )
    pids = [int(word) for word in done.stdout.split()]
    assert len(pids) == 2
    assert gone(pids)


def test_a_factory_of_the_script_itself_works(tmp_path):
    script = tmp_path / "job.py"
    script.write_text(
        textwrap.dedent("""
        from helpers.vector_fakes import Counter
        from turncredit.envs import VectorEnv

        class Mine(Counter):
            pass

        if __name__ == "__main__":
            with VectorEnv(Mine, 1, num_workers=1) as envs:
                print(envs.reset({0: "a"})[0].text)
        """)
    )
    done = subprocess.run(
        [sys.executable, str(script)], capture_output=True, text=True, timeout=60, check=False, env=ENV
    )
    assert (done.stdout, done.stderr) == ("a:0\n", "")


def test_a_factory_of_an_interactive_session_is_refused_with_advice():
    source = "from turncredit.envs import VectorEnv\ndef make(): ...\nVectorEnv(make, 1)"
    done = subprocess.run([sys.executable, "-c", source], capture_output=True, text=True, timeout=60, check=False)
    assert "VectorEnv: make_env must be importable in a worker" in done.stderr
    assert "num_workers=0" in done.stderr


def test_bad_arguments_are_named(fakes):
    with pytest.raises(ValueError, match="VectorEnv: num_envs must be at least 1, got 0"):
        VectorEnv(fakes.Counter, 0)
    with pytest.raises(ValueError, match="VectorEnv: num_workers must be at least 0, got -1"):
        VectorEnv(fakes.Counter, 1, num_workers=-1)
    with pytest.raises(ValueError, match="VectorEnv: timeout must be positive seconds, got 0"):
        VectorEnv(fakes.Counter, 1, timeout=0)
    with pytest.raises(ValueError, match="VectorEnv: make_env must be picklable"):
        VectorEnv(lambda: None, 1)  # type: ignore[arg-type, return-value]
    with VectorEnv(fakes.Counter, 2, num_workers=0) as envs:
        with pytest.raises(ValueError, match=r"slot must be in 0\.\.1, got 2"):
            envs.reset({2: "a"})
        with pytest.raises(ValueError, match="slot 1, whose episode was never reset"):
            envs.step({1: "x"})
        envs.reset({0: "a"})
        envs.step({0: "finish"})
        with pytest.raises(ValueError, match="slot 0, whose episode is over"):
            envs.step({0: "x"})
        assert envs.reset({}) == {}
        assert envs.step({}) == {}


def test_a_signal_to_the_whole_group_costs_no_episode(fakes):
    """A batch system sends SIGTERM to every process; the trainer finishes its update first, and needs its workers."""
    with VectorEnv(fakes.Counter, 2, num_workers=1) as envs:
        envs.reset({0: "a"})
        for number in (signal.SIGTERM, signal.SIGINT):
            os.kill(envs.worker_pids[0], number)
        time.sleep(0.1)
        assert texts(envs.step({0: "x"})) == {0: "a:1"}
        assert envs.workers_replaced == 0
        pids = envs.worker_pids
    assert gone(pids), "and they leave when they are told to"
