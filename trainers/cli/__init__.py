"""The command ``turncredit``: train, evaluate, compare, and look at what is installed; see docs/cli.md."""

from .app import main

__all__ = ["main"]
