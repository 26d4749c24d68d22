"""Small processes whose pivotal turns are known. In each, success pays 1 and everything else 0.

Every state has three moves. Their labels are rotated from state to state, so that "action 0" is good in one state and
bad in the next: a teacher that speaks about the wrong decision misleads. States that look alike have the same labels.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

import torch

from .process import DecisionProcess

_Target = str | Mapping[str, float]
_WIN, _LOSE = "win", "lose"


class _Builder:
    """Collects named states and their moves ``(probability under the policy, next state or {state: chance})``."""

    def __init__(self) -> None:
        self.moves: dict[str, list[tuple[float, _Target]]] = {_WIN: [], _LOSE: []}
        self.facts: dict[str, tuple[str, int, float, tuple[float, ...]]] = {}
        self.shows: dict[str, str] = {}

    def state(
        self,
        name: str,
        *moves: tuple[float, _Target],
        phase: int = 0,
        decision: str = "",
        echo: float = 0.0,
        hint: tuple[float, ...] = (0.0, 0.0, 0.0),
        shows: str = "",
    ) -> None:
        """``shows`` names the state it looks like, ``decision`` the decision faced; ``hint`` is the bias per move."""
        self.moves[name] = list(moves)
        self.shows[name] = shows or name
        self.facts[name] = (decision or self.shows[name], phase, echo, hint)

    def corridor(self, prefix: str, length: int, to: str, *, stay: float = 0.2, like: str = "", **facts: object) -> str:
        """Cells in which nothing is at stake: walk on, walk on differently, or look around. Returns the first.

        They look like those of the corridor with the prefix ``like``.
        """
        names = [f"{prefix}{index}" for index in range(length)]
        for index, (name, following) in enumerate(zip(names, [*names[1:], to], strict=True)):
            moves = (0.8 - stay, following), (0.2, following), (stay, name)
            self.state(name, *moves, shows=f"{like}{index}" if like else "", **facts)  # type: ignore[arg-type]
        return names[0] if names else to

    def build(self, name: str, start: str, horizon: int) -> DecisionProcess:
        names = list(self.moves)
        place = {key: index for index, key in enumerate(names)}
        decisions = {key: index for index, key in enumerate(dict.fromkeys(f[0] for f in self.facts.values()))}
        size = len(names)
        transitions = torch.zeros(size, 3, size, dtype=torch.float64)
        policy, hint_bias = torch.zeros(2, size, 3, dtype=torch.float64)
        echo = torch.zeros(size, dtype=torch.float64)
        identity, phases = torch.full((2, size), len(decisions))
        for key, moves in self.moves.items():
            row = place[key]
            if not moves:
                policy[row], transitions[row, :, row] = 1 / 3, 1.0
                continue
            decision, phase, echo[row], hint = self.facts[key]
            identity[row], phases[row] = decisions[decision], phase
            for index, (chance, target) in enumerate(moves):
                action = (index + place[self.shows[key]]) % 3
                policy[row, action], hint_bias[row, action] = chance, hint[index]
                outcomes = {target: 1.0} if isinstance(target, str) else target
                for following, probability in outcomes.items():
                    transitions[row, action, place[following]] += probability
        rewards = torch.zeros(size, dtype=torch.float64)
        rewards[place[_WIN]] = 1.0
        terminal = torch.zeros(size, dtype=torch.bool)
        terminal[[place[_WIN], place[_LOSE]]] = True
        shown = torch.tensor([place[self.shows.get(key, key)] for key in names])
        return DecisionProcess(
            name, transitions, policy, rewards, terminal, place[start], horizon, identity, phases, echo, hint_bias,
            tuple(names), shown,
        )  # fmt: skip


def key_door(*, before: int = 2, after: int = 3, horizon: int = 16) -> DecisionProcess:
    """A corridor, a key to take or leave, a corridor, a door: the key decides, the door seldom does."""
    made = _Builder()
    made.corridor("held_", after, "door", phase=2)
    made.corridor("empty_", after, "shut", phase=2)
    made.state("door", (0.7, {_WIN: 0.95, _LOSE: 0.05}), (0.15, "door"), (0.15, {_WIN: 0.2, _LOSE: 0.8}), phase=3)
    made.state("shut", (0.7, {_WIN: 0.05, _LOSE: 0.95}), (0.15, "shut"), (0.15, {_WIN: 0.1, _LOSE: 0.9}), phase=3)
    made.state("key", (0.5, "held_0"), (0.35, "empty_0"), (0.15, "key"), phase=1)
    start = made.corridor("walk_", before, "key")
    return made.build("key_door", start, horizon)


def lock_chain(*, locks: int = 4, between: int = 1, stay: float = 0.2, horizon: int = 20) -> DecisionProcess:
    """Several locks in a row; one wrong turn is fatal, but the episode walks on to its end without knowing."""
    made = _Builder()
    for index in reversed(range(locks)):
        last = index == locks - 1
        right: _Target = {_WIN: 0.95, _LOSE: 0.05} if last else f"good{index + 1}_0"
        wrong: _Target = {_WIN: 0.02, _LOSE: 0.98} if last else f"bad{index + 1}_0"
        made.state(f"lock{index}", (0.72, right), (0.18, wrong), (0.1, f"lock{index}"), phase=index)
        made.corridor(f"good{index}_", between, f"lock{index}", stay=stay, phase=index)
        if index:
            made.state(f"broken{index}", (0.72, wrong), (0.18, wrong), (0.1, f"broken{index}"), phase=index)
            made.corridor(f"bad{index}_", between, f"broken{index}", stay=stay, phase=index)
    return made.build("lock_chain", "good0_0", horizon)


def detour(*, cells: int = 5, horizon: int = 11) -> DecisionProcess:
    """A path with a deadline: each wrong turn costs two turns and can be made good until time runs out."""
    made = _Builder()
    for index in range(cells):
        following = _WIN if index == cells - 1 else f"cell{index + 1}"
        made.state(f"cell{index}", (0.6, following), (0.25, f"away{index}"), (0.15, f"cell{index}"), phase=index)
        made.state(f"away{index}", (0.7, f"back{index}"), (0.2, f"back{index}"), (0.1, f"back{index}"), phase=index)
        made.state(f"back{index}", (0.7, f"cell{index}"), (0.2, f"cell{index}"), (0.1, f"cell{index}"), phase=index)
    return made.build("detour", "cell0", horizon)


def redundant_evidence(*, after: int = 8, echo: float = 0.8, horizon: int = 20) -> DecisionProcess:
    """One early choice, then many turns that decide nothing but in which the teacher sees again how it went."""
    made = _Builder()
    made.corridor("held_", after, "end", phase=2, echo=0.25 * echo)
    made.corridor("empty_", after, "dead_end", phase=2, echo=-echo)
    made.state("end", (0.7, {_WIN: 0.95, _LOSE: 0.05}), (0.2, {_WIN: 0.95, _LOSE: 0.05}), (0.1, "end"), phase=3)
    made.state(
        "dead_end", (0.7, {_WIN: 0.05, _LOSE: 0.95}), (0.2, {_WIN: 0.05, _LOSE: 0.95}), (0.1, "dead_end"),
        phase=3, echo=-echo,
    )  # fmt: skip
    made.state("key", (0.5, "held_0"), (0.35, "empty_0"), (0.15, "key"), phase=1)
    start = made.corridor("walk_", 1, "key")
    return made.build("redundant_evidence", start, horizon)


def misleading_evidence(*, bias: float = 1.5, horizon: int = 14) -> DecisionProcess:
    """Turns without consequence on which the teacher insists, one choice it gets right, and one it gets wrong."""
    made = _Builder()
    loud = (bias, -bias, 0.0)
    made.state("fork", (0.45, "held_a"), (0.4, "empty_a"), (0.15, "fork"), phase=1)
    for prefix, end in (("held", "gate"), ("empty", "shut")):
        for name, following in ((f"{prefix}_a", f"{prefix}_b"), (f"{prefix}_b", end)):
            made.state(name, (0.45, following), (0.45, following), (0.1, name), phase=2, hint=loud)
    wrong = (-bias, bias, 0.0)
    made.state("gate", (0.5, {_WIN: 0.95, _LOSE: 0.05}), (0.35, {_WIN: 0.5, _LOSE: 0.5}), (0.15, "gate"), phase=3,
               hint=wrong)  # fmt: skip
    made.state("shut", (0.5, {_WIN: 0.1, _LOSE: 0.9}), (0.35, {_WIN: 0.05, _LOSE: 0.95}), (0.15, "shut"), phase=3,
               hint=wrong)  # fmt: skip
    for name, following in (("noise_a", "noise_b"), ("noise_b", "fork")):
        made.state(name, (0.45, following), (0.45, following), (0.1, name), hint=loud)
    return made.build("misleading_evidence", "noise_a", horizon)


def late_choice(*, before: int = 7, horizon: int = 18) -> DecisionProcess:
    """A long walk in which nothing matters, and one choice at its end."""
    made = _Builder()
    made.state("choice", (0.45, {_WIN: 0.95, _LOSE: 0.05}), (0.4, {_WIN: 0.05, _LOSE: 0.95}), (0.15, "choice"), phase=1)
    start = made.corridor("walk_", before, "choice")
    return made.build("late_choice", start, horizon)


def long_horizon(*, horizon: int = 50) -> DecisionProcess:
    """Three locks with nine empty cells before each: 30 to 50 turns, of which three decide."""
    process = lock_chain(locks=3, between=9, stay=0.25, horizon=horizon)
    return replace(process, name="long_horizon")


def look_alike(*, before: int = 2, after: int = 3, horizon: int = 16) -> DecisionProcess:
    """A key to take or leave, then a hall and a door that look the same with and without it.

    What helps at the door depends on what cannot be seen there: the same move at the same sight is right with the key
    and wrong without it. To merge the sights hides both the key's worth and the door's.
    """
    made = _Builder()
    made.corridor("held_", after, "door", phase=2)
    made.corridor("empty_", after, "shut", phase=2, like="held_")
    other: _Target = {_WIN: 0.4, _LOSE: 0.6}
    made.state("door", (0.5, {_WIN: 0.95, _LOSE: 0.05}), (0.35, other), (0.15, "door"), phase=3)
    made.state("shut", (0.5, {_WIN: 0.05, _LOSE: 0.95}), (0.35, other), (0.15, "shut"), phase=3, shows="door")
    made.state("key", (0.5, "held_0"), (0.35, "empty_0"), (0.15, "key"), phase=1)
    start = made.corridor("walk_", before, "key")
    return made.build("look_alike", start, horizon)


def rarely_repeated(*, unique: float = 0.75) -> DecisionProcess:
    """:func:`lock_chain` seen with a clock or a remark: on most visits the observation never comes again."""
    return replace(lock_chain(), name="rarely_repeated", unique_share=unique)


_MAKERS = (
    key_door, lock_chain, detour, redundant_evidence, misleading_evidence, late_choice, long_horizon, look_alike,
    rarely_repeated,
)  # fmt: skip
PROCESSES: dict[str, Callable[[], DecisionProcess]] = {made.__name__: made for made in _MAKERS}
EXACT_PROCESSES = tuple(PROCESSES)[:7]
"""Those in which equal observations are equal states and repeat between siblings; main means are over these."""
