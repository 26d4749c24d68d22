"""Turn-level credit in other people's trainers: TRL's GRPOTrainer, verl's batches; docs/trainers.md.

Nothing here imports TRL or verl: the mixin stands before the class that you import, the batch is the one you hand over.
"""

from .plan import RolloutBatch, TurnCredit
from .trl import TurnCreditMixin
from .verl import verl_credit

__all__ = ["RolloutBatch", "TurnCredit", "TurnCreditMixin", "verl_credit"]
