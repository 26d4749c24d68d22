"""AlignOPSD and its pieces: supervision from sibling decisions, and credit shared among spans of turns."""

from .align_opsd import ALIGN_PROFILES, AlignProfile, align_opsd
from .allocation import Allocation, allocate, hierarchical_density, project_density
from .correspondence import Correspondence, TaskBlock, build_correspondence, correspondence_from_similarity
from .profiles import (
    Divergence,
    boundary_divergences,
    boundary_threshold,
    dense_profiles,
    profile_divergence,
)
from .rectification import Rectification, Sources, action_similarity, identity_rectification, rectify, select_sources
from .spans import check_spans, random_spans, segment_spans

__all__ = [
    "ALIGN_PROFILES",
    "AlignProfile",
    "Allocation",
    "Correspondence",
    "Divergence",
    "Rectification",
    "Sources",
    "TaskBlock",
    "action_similarity",
    "align_opsd",
    "allocate",
    "boundary_divergences",
    "boundary_threshold",
    "build_correspondence",
    "check_spans",
    "correspondence_from_similarity",
    "dense_profiles",
    "hierarchical_density",
    "identity_rectification",
    "profile_divergence",
    "project_density",
    "random_spans",
    "rectify",
    "segment_spans",
    "select_sources",
]
