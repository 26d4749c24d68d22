"""Log-probs of a student and of a privileged teacher of chosen quality on the tokens of sampled episodes.

The teacher sees the exact values. Its preference among the actions of a decision is a *hint*; under a hint the actions
of a turn have the probabilities

    pi_T(a) = pi(a|s) exp(hint_a) / sum_b pi(b|s) exp(hint_b),   hint_a = scale (log((1 - f) Q(s, a) + f) + bias_a)

With scale 1 and no floor f this is Bayes' rule, P(a | s, success): the calibrated teacher, whose gaps along a winning
trajectory sum to log 1 / V(start) where no luck is involved.

A teacher with ``grades`` scores each step instead, as a model does that is asked how good its own step was. Its opinion
is how much the step moved the odds of success, in nats and with noise, squashed and rounded to one of n grades:

    z_a = logit q(s, a) - logit v(s) + bias_a + score_noise N(0, 1),   q = (1 - f) Q + f / 2, v likewise
    score_a = scale (2 round((n - 1) sigmoid(z_a)) / (n - 1) - 1), in [-scale, scale]

The score is the turn's summed gap. Between the moves of one state its mean opinion orders as Q does; a step that
changes nothing has opinion 0.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import cached_property

import torch
from torch import Tensor
from torch.nn.functional import normalize

from ...align import Correspondence, build_correspondence, select_sources
from ...inputs import CreditInputs
from ...registry import CreditMethod
from .process import DecisionProcess, Episodes, ExactValues, exact_credit, exact_values, sample_episodes

_THINKING = (3, 9)
_ACTION = 2
_WIDTH = 64


@dataclass(frozen=True)
class Teacher:
    """Quality of the privileged teacher.

    Args:
        name: for tables.
        scale: miscalibration: 1 is Bayes' rule, more is overconfident, 0 knows nothing, less is adversarial: it prefers
            what fails. For a teacher with grades the score of the best grade, nats.
        bias: nats added to every token, whatever it says; negative as measured on real models, whose privileged
            context makes the student's own phrasing less likely.
        noise: standard deviation of the gap of a token, nats.
        shift: decision-timestamp shift: the teacher of trajectory i speaks, at turn k, about the decision of turn
            ``k + o_i``, with ``o_i`` drawn from -shift .. shift once per trajectory.
        mix: share of the shifted hint in what it says; the rest is about the turn's own decision.
        floor: f, the chance of success it grants to a lost cause, in (0, 1).
        embedding_noise: size of the noise on the unit vector that stands for what a text thinks about.
        grades: 0 for a tilted distribution; else n, at least 2, of a teacher that scores steps with n grades.
        score_noise: standard deviation of its opinion of a step, nats; read only with grades.

    Raises:
        ValueError: an option is out of range.
    """

    name: str = "calibrated"
    scale: float = 1.0
    bias: float = 0.0
    noise: float = 0.05
    shift: int = 0
    mix: float = 1.0
    floor: float = 0.02
    embedding_noise: float = 0.25
    grades: int = 0
    score_noise: float = 1.0

    def __post_init__(self) -> None:
        for name, low, high in (
            ("scale", -float("inf"), float("inf")), ("noise", 0, float("inf")), ("shift", 0, float("inf")),
            ("mix", 0, 1), ("floor", 1e-12, 1), ("embedding_noise", 0, float("inf")),
            ("grades", 0, 1000), ("score_noise", 0, float("inf")),
        ):  # fmt: skip
            value = getattr(self, name)
            if not low <= value <= high:
                raise ValueError(
                    f"Teacher: {name} must lie in [{low}, {high}], got {value}; leave it out for the default"
                )
        if self.grades == 1 or self.grades != int(self.grades):
            raise ValueError(
                f"Teacher: grades must be 0 or a whole number from 2 on, got {self.grades}; 5 is a usual scale"
            )


TEACHERS = {
    teacher.name: teacher
    for teacher in (
        Teacher(),
        Teacher("noisy", noise=0.4),
        Teacher("overconfident", scale=5.0),
        Teacher("strong", scale=5.0, bias=-0.6, noise=0.2),
        Teacher("shifted", shift=2),
        Teacher("adversarial", scale=-1.0),
        Teacher("uninformative", scale=0.0, bias=-0.2, noise=0.4),
        Teacher("self_scores", grades=5),
    )
}
PUBLISHED_TEACHERS = tuple(TEACHERS)[:5]
"""The qualities that published methods claim to work under; means over teachers are over these."""


@dataclass(frozen=True)
class SyntheticBatch:
    """A batch for credit methods, with the truth beside it.

    Rows are turns ordered by (trajectory, turn). Log-probs are surrogates with the right sums and noise; with noise a
    teacher's may exceed 0.

    Args:
        inputs: everything but the correspondence; ``span_mask`` marks the action, ``anchor_ids`` what
            the state shows.
        advantages: ``[M]`` float64, exact.
        luck: ``[M]`` float64, exact.
        values: of the process.
        episodes: the trajectories.
        hints: ``[M, A]`` float64, what each turn's teacher says: nats by which it prefers an action, or its scores.
        teacher: its quality.
        noise_seed: of the noise on cross scores.
    """

    inputs: CreditInputs
    advantages: Tensor
    luck: Tensor
    values: ExactValues
    episodes: Episodes
    hints: Tensor
    teacher: Teacher
    noise_seed: int
    _parts: tuple[Tensor, Tensor, Tensor] = field(repr=False)
    _vectors: tuple[Tensor, Tensor] = field(repr=False)
    _scored: dict[tuple[float, int], CreditInputs] = field(default_factory=dict, repr=False)

    @cached_property
    def correspondence(self) -> Correspondence:
        """Similarities per group, no sources selected; computed when first asked for."""
        inputs = self.inputs
        known = torch.ones(inputs.num_rows, dtype=torch.bool)
        return build_correspondence(
            *self._vectors, inputs.trajectory_ids, inputs.turn_ids, inputs.group_ids, known, known
        )

    def with_sources(self, *, similarity_threshold: float = 0.8, top_k: int = 3) -> CreditInputs:
        """The batch with sibling sources selected and scored for AlignOPSD.

        Raises:
            ValueError: an option is out of range.
        """
        key = similarity_threshold, top_k
        if key not in self._scored:
            self._scored[key] = self._score(similarity_threshold, top_k)
        return self._scored[key]

    def _score(self, similarity_threshold: float, top_k: int) -> CreditInputs:
        sources = select_sources(self.correspondence, similarity_threshold=similarity_threshold, top_k=top_k)
        generator = torch.Generator().manual_seed(self.noise_seed)
        shares, offset, shared = self._parts
        target = sources.target
        decided = _decision_gap(self.episodes, self.hints, sources.source, target, self.teacher)
        own = torch.randn(target.numel(), shares.shape[1], generator=generator)
        gap = decided[:, None] * shares[target] + offset[target] + self.teacher.noise * _blend(shared[target], own)
        scores = torch.where(self.inputs.response_mask[target], self.inputs.student_logprobs[target] + gap.float(), 0.0)
        return replace(self.inputs, correspondence=self.correspondence.with_scores(sources, scores))

    def inputs_for(self, method: CreditMethod) -> CreditInputs:
        """The batch with whatever ``method`` requires, its sources selected by its own options."""
        if "correspondence" not in method.requires:
            return self.inputs
        names = [name for name in ("similarity_threshold", "top_k") if name in method.options]
        return self.with_sources(**{name: method.options[name] for name in names})


def synthetic_batch(
    process: DecisionProcess,
    teacher: Teacher | None = None,
    *,
    groups: int = 16,
    group_size: int = 8,
    generator: torch.Generator,
) -> SyntheticBatch:
    """Sample groups of trajectories and score them under student and teacher.

    Args:
        process: where to act.
        teacher: the calibrated one if None.
        groups: number of groups.
        group_size: rollouts of a group.
        generator: source of all randomness.

    Raises:
        ValueError: a return lies outside [0, 1], which the teacher could not read as a chance of success.
    """
    teacher = Teacher() if teacher is None else teacher
    values = exact_values(process)
    if bool((values.action < 0).any()) or bool((values.action > 1 + 1e-9).any()):
        raise ValueError(
            f"synthetic_batch: process must have values in [0, 1], got {float(values.action.min()):.3g} .. "
            f"{float(values.action.max()):.3g}; pay 1 for success and 0 otherwise"
        )
    episodes = sample_episodes(process, groups=groups, group_size=group_size, generator=generator)
    trajectory, turn = episodes.turns
    state = episodes.states[trajectory, turn]
    mask, action_mask, student = _tokens(episodes, generator)
    told = _told_turn(episodes, teacher, generator)
    # Everything that no teacher changes is drawn before what only some teachers draw.
    shared, own = torch.randn(2, *mask.shape, generator=generator)
    anchors = _anchors(episodes, generator)
    hints = _hints(episodes, values, teacher, told, generator)
    rows = torch.arange(turn.numel())
    shares = _shares(mask, action_mask)
    thinking = mask & ~action_mask
    offset = teacher.bias + process.echo[state][:, None] * thinking / thinking.sum(-1, keepdim=True)
    decided = _decision_gap(episodes, hints, rows, rows, teacher)
    gap = decided[:, None] * shares + offset + teacher.noise * _blend(shared, own)
    inputs = CreditInputs(
        response_mask=mask,
        trajectory_ids=trajectory,
        turn_ids=turn,
        group_ids=episodes.group_ids,
        rewards=episodes.returns.float(),
        successes=episodes.returns.float(),
        student_logprobs=student,
        teacher_logprobs=torch.where(mask, student + gap.float(), 0.0),
        span_mask=action_mask,
        anchor_ids=anchors,
        turn_rewards=episodes.rewards[trajectory, turn].float(),
    )
    vectors = _vectors(episodes, teacher, told, generator)
    exact = exact_credit(episodes, values)
    seed = int(torch.randint(1 << 31, (), generator=generator))
    return SyntheticBatch(
        inputs, exact.advantages, exact.luck, values, episodes, hints, teacher, seed, (shares, offset, shared), vectors,
    )  # fmt: skip


def _tokens(episodes: Episodes, generator: torch.Generator) -> tuple[Tensor, Tensor, Tensor]:
    """Masks ``[M, T]`` of response and action, and student log-probs: thinking, then the action at its exact price."""
    trajectory, turn = episodes.turns
    thinking = torch.randint(_THINKING[0], _THINKING[1] + 1, (turn.numel(), 1), generator=generator)
    place = torch.arange(_THINKING[1] + _ACTION)
    mask = place < thinking + _ACTION
    action_mask = mask & (place >= thinking)
    chosen = episodes.process.policy[episodes.states[trajectory, turn], episodes.actions[trajectory, turn]]
    filler = -0.7 * torch.randn(mask.shape, generator=generator).abs()
    student = torch.where(action_mask, (chosen.log() / _ACTION).float()[:, None], filler)
    return mask, action_mask, torch.where(mask, student, 0.0)


def _anchors(episodes: Episodes, generator: torch.Generator) -> Tensor:
    """``[M]`` equal for turns of a group that saw the same; what a visit shows once and never again is its own."""
    process = episodes.process
    trajectory, turn = episodes.turns
    states = process.policy.shape[0]
    anchors = episodes.group_ids[trajectory] * states + process.shown[episodes.states[trajectory, turn]]
    if not process.unique_share:
        return anchors
    unique = torch.rand(anchors.shape, generator=generator) < process.unique_share
    fresh = episodes.group_ids.max() * states + states + torch.arange(anchors.numel())
    return torch.where(unique, fresh, anchors)


def _told_turn(episodes: Episodes, teacher: Teacher, generator: torch.Generator) -> Tensor:
    """``[M]`` the turn of its own trajectory that each turn's teacher speaks about."""
    trajectory, turn = episodes.turns
    offset = torch.randint(-teacher.shift, teacher.shift + 1, (episodes.alive.shape[0],), generator=generator)
    last = episodes.alive.sum(-1) - 1
    return torch.minimum((turn + offset[trajectory]).clamp(min=0), last[trajectory])


def _hints(
    episodes: Episodes, values: ExactValues, teacher: Teacher, told: Tensor, generator: torch.Generator
) -> Tensor:
    """``[M, A]`` what the teacher of each turn says about each action, its own decision mixed with the told one."""
    process = episodes.process
    trajectory, turn = episodes.turns

    def tilt(at: Tensor) -> Tensor:
        state = episodes.states[trajectory, at]
        chance = (1 - teacher.floor) * values.action[at, state] + teacher.floor
        return teacher.scale * (chance.log() + process.hint_bias[state])

    def opinion(at: Tensor) -> Tensor:
        state = episodes.states[trajectory, at]
        odds = [((1 - teacher.floor) * value[at, state].clamp(0, 1) + teacher.floor / 2).logit() for value in values]
        return odds[1] - odds[0][:, None] + process.hint_bias[state]

    if not teacher.grades:
        return torch.lerp(tilt(turn), tilt(told), teacher.mix)
    mixed = torch.lerp(opinion(turn), opinion(told), teacher.mix)
    mixed = mixed + teacher.score_noise * torch.randn(mixed.shape, generator=generator, dtype=torch.float64)
    steps = int(teacher.grades) - 1
    return teacher.scale * (2 * (mixed.sigmoid() * steps).round() / steps - 1)


def _decision_gap(episodes: Episodes, hints: Tensor, source: Tensor, target: Tensor, teacher: Teacher) -> Tensor:
    """``[P]`` the source's score of the target's action, or log pi_T(a) - log pi(a) of it under the source's hint."""
    trajectory, turn = (index[target] for index in episodes.turns)
    chosen = hints[source].gather(1, episodes.actions[trajectory, turn][:, None]).squeeze(1)
    if teacher.grades:
        return chosen
    log_policy = episodes.process.policy[episodes.states[trajectory, turn]].log()
    return chosen - (log_policy + hints[source]).logsumexp(-1)


def _shares(mask: Tensor, action_mask: Tensor) -> Tensor:
    """``[M, T]`` how a turn's decision gap is spread: half over its thinking, half over its action."""
    thinking = mask & ~action_mask
    return 0.5 * thinking / thinking.sum(-1, keepdim=True) + 0.5 * action_mask / action_mask.sum(-1, keepdim=True)


def _blend(shared: Tensor, own: Tensor) -> Tensor:
    """Unit-variance noise, half of it common to every context that scores the same tokens."""
    return (shared + own) * 0.5**0.5


def _vectors(episodes: Episodes, teacher: Teacher, told: Tensor, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """``[M, D]`` noisy vectors of what each turn's teacher speaks about, and of the decision the turn faces."""
    process = episodes.process
    trajectory, turn = episodes.turns
    own = normalize(torch.randn(int(process.decisions.max()) + 1, _WIDTH, generator=generator), dim=-1)
    phase = normalize(torch.randn(int(process.phases.max()) + 1, _WIDTH, generator=generator), dim=-1)
    vectors = normalize(0.8 * own[process.decisions] + 0.6 * phase[process.phases], dim=-1)

    def noisy(clean: Tensor) -> Tensor:
        return clean + teacher.embedding_noise * normalize(torch.randn(clean.shape, generator=generator), dim=-1)

    faced = vectors[episodes.states[trajectory, turn]]
    spoken = torch.lerp(faced, vectors[episodes.states[trajectory, told]], teacher.mix)
    return noisy(spoken), noisy(faced)
