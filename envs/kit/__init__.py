"""Parts that every benchmark needs once: a base suite, a parser of tagged answers, prompts, skills, balanced panels.

A task suite may use all of it, some or nothing: the library asks only for `turncredit.envs.TaskSuite`. Nothing here
imports torch. ``docs/adding_an_environment.md`` builds an environment on it.
"""

from .balance import balanced
from .contexts import Contexts, chosen_contexts
from .parsing import TaggedParser
from .prompts import RULES, history_text, step_messages
from .skills import Skill, SkillBank, skill_lines
from .suite import BaseSuite, PromptBuilder, SuiteOptions

__all__ = [
    "RULES",
    "BaseSuite",
    "Contexts",
    "PromptBuilder",
    "Skill",
    "SkillBank",
    "SuiteOptions",
    "TaggedParser",
    "balanced",
    "chosen_contexts",
    "history_text",
    "skill_lines",
    "step_messages",
]
