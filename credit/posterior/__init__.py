"""Posterior credit: what each turn was worth, given the teacher, the siblings and the outcome."""

from .facts import Facts, facts_of, joined
from .posterior import posterior

__all__ = ["Facts", "facts_of", "joined", "posterior"]
