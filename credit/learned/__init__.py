"""Methods that read one more signal: a head's, entropies, a gold answer's probability, a reward model's."""

from .empg import EntropyFacts, EntropyScale, empg, entropy_facts, entropy_scale
from .igpo import igpo
from .istar import Preferences, istar, preferences
from .spa_rl import spa_rl
from .turn_gae import turn_gae

__all__ = [
    "EntropyFacts",
    "EntropyScale",
    "Preferences",
    "empg",
    "entropy_facts",
    "entropy_scale",
    "igpo",
    "istar",
    "preferences",
    "spa_rl",
    "turn_gae",
]
