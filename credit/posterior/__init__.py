"""Posterior credit: what each turn was worth, given the teacher, the siblings and the outcome."""

from .posterior import posterior

__all__ = ["posterior"]
