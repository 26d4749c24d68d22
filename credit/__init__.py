"""Credit functions: which turn earned the reward? Tensors in, tensors out."""

from .agent_opsd import agent_opsd
from .align_opsd import ALIGN_PROFILES, AlignProfile, align_opsd
from .allocation import Allocation, allocate, hierarchical_density, project_density
from .beliefs import belief_revisions
from .correspondence import Correspondence, TaskBlock, build_correspondence, correspondence_from_similarity
from .gigpo import gigpo, similarity_anchors
from .groups import group_relative_advantages
from .grpo import grpo
from .inputs import Credit, CreditInputs
from .invalid_action import invalid_action_residual
from .metrics import Deviation, Largest, Mean, Total, join_metrics
from .profiles import boundary_divergences, boundary_threshold, dense_profiles, profile_divergence
from .rectification import rectify
from .registry import CreditMethod, get_credit, list_credits, register_credit
from .rlsd import rlsd
from .sources import Sources, action_similarity, select_sources
from .spans import check_spans, random_spans, segment_spans
from .step_opsd import step_opsd

__all__ = [
    "ALIGN_PROFILES",
    "AlignProfile",
    "Allocation",
    "Correspondence",
    "Credit",
    "CreditInputs",
    "CreditMethod",
    "Deviation",
    "Largest",
    "Mean",
    "Sources",
    "TaskBlock",
    "Total",
    "action_similarity",
    "agent_opsd",
    "align_opsd",
    "allocate",
    "belief_revisions",
    "boundary_divergences",
    "boundary_threshold",
    "build_correspondence",
    "check_spans",
    "correspondence_from_similarity",
    "dense_profiles",
    "get_credit",
    "gigpo",
    "group_relative_advantages",
    "grpo",
    "hierarchical_density",
    "invalid_action_residual",
    "join_metrics",
    "list_credits",
    "profile_divergence",
    "project_density",
    "random_spans",
    "rectify",
    "register_credit",
    "rlsd",
    "segment_spans",
    "select_sources",
    "similarity_anchors",
    "step_opsd",
]
