"""ALFWorld on the real TextWorld engine: official games, new generated games, prompts, skills and hints.

Importing this package needs nothing but the standard library; the engine is imported when a game is first played or
generated, and its absence is then reported with the command that installs it.
"""

from .data import SPLITS, TASK_TYPES, Game, data_root, find_games, read_game
from .env import AlfWorldEnv, task_text
from .generator import generate_games
from .hints import Hint, hint_from_walkthrough
from .old_traces import modern_action, modern_observation
from .prompts import alfworld_messages, parse_response
from .skills import Skill, skill_bank, skills_for, skills_text, task_type_from_text
from .suite import AlfWorldSuite

__all__ = [
    "SPLITS",
    "TASK_TYPES",
    "AlfWorldEnv",
    "AlfWorldSuite",
    "Game",
    "Hint",
    "Skill",
    "alfworld_messages",
    "data_root",
    "find_games",
    "generate_games",
    "hint_from_walkthrough",
    "modern_action",
    "modern_observation",
    "parse_response",
    "read_game",
    "skill_bank",
    "skills_for",
    "skills_text",
    "task_text",
    "task_type_from_text",
]
