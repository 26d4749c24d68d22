"""Seeing credit: figures (matplotlib, the ``viz`` extra, imported when the first is drawn) and an HTML token view."""

from .curves import plot_curves
from .fidelity import plot_fidelity
from .figures import plot_group, plot_trajectory_credit
from .html import TokenView, view_tokens
from .learning import plot_learning
from .methods import plot_methods

__all__ = [
    "TokenView",
    "plot_curves",
    "plot_fidelity",
    "plot_group",
    "plot_learning",
    "plot_methods",
    "plot_trajectory_credit",
    "view_tokens",
]
