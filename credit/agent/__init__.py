"""AgentOPSD: beliefs of success, revised turn by turn by the privileged teacher."""

from .agent_opsd import agent_opsd
from .beliefs import belief_revisions

__all__ = ["agent_opsd", "belief_revisions"]
