"""Decision processes with known pivotal turns, and teachers of chosen quality: the truth to judge credit by.

>>> import torch
>>> batch = synthetic_batch(key_door(), TEACHERS["noisy"], generator=torch.Generator().manual_seed(0))
>>> batch.advantages.shape == batch.inputs.trajectory_ids.shape
True
"""

from .library import (
    EXACT_PROCESSES,
    PROCESSES,
    detour,
    key_door,
    late_choice,
    lock_chain,
    long_horizon,
    look_alike,
    misleading_evidence,
    rarely_repeated,
    redundant_evidence,
)
from .process import (
    DecisionProcess,
    Episodes,
    ExactCredit,
    ExactValues,
    exact_credit,
    exact_gradient,
    exact_values,
    sample_episodes,
    state_visits,
)
from .teacher import PUBLISHED_TEACHERS, TEACHERS, SyntheticBatch, Teacher, synthetic_batch

__all__ = [
    "DecisionProcess",
    "Episodes",
    "ExactCredit",
    "ExactValues",
    "exact_credit",
    "exact_gradient",
    "exact_values",
    "sample_episodes",
    "state_visits",
    "EXACT_PROCESSES",
    "PROCESSES",
    "detour",
    "key_door",
    "late_choice",
    "lock_chain",
    "long_horizon",
    "look_alike",
    "misleading_evidence",
    "rarely_repeated",
    "redundant_evidence",
    "PUBLISHED_TEACHERS",
    "TEACHERS",
    "SyntheticBatch",
    "Teacher",
    "synthetic_batch",
]
