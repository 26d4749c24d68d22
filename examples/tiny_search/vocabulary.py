"""The tokenizer of the generated world: every name is one token, also one of several words."""

from __future__ import annotations

from tiny_policy.tokenizer import PUNCTUATION, build_tokenizer
from transformers import PreTrainedTokenizerFast

from turncredit.envs.search_qa.generator import REGIONS, RIVERS, TRADES, world_names

TAGS = ("<think>", "</think>", "<search>", "</search>", "<answer>", "</answer>")
PEOPLE = 20
"""People in every world here; their years, and those of the guilds, follow from it."""
PARTS = 16
TRAIN, EVAL = 0, 1
"""Parts of all names: of worlds to train on and to evaluate on. The other parts are not used."""

_TEXT = """
question turn asked kept now nothing then
in which town was the founder of born what trade region is hall who founded on river does stand earlier or
a an and by its stands year guild name did
passages that hold answer
think look around again guess need have search
"""
PLAIN_WORDS = tuple(dict.fromkeys(_TEXT.split()))
"""Every word that is not a name, trade or year."""


def all_words() -> list[str]:
    """All single words of the generated worlds, their prompts and the scripted player's thoughts."""
    names = [world_names(part, PARTS) for part in (TRAIN, EVAL)]
    years = [*range(1700, 1700 + 2 * PEOPLE), *range(1800, 1800 + PEOPLE)]
    known = [name for part in names for kind in ("people", "towns") for name in part[kind]]
    return [*PLAIN_WORDS, *TRADES, *REGIONS, *RIVERS, *known, *map(str, years)]


def search_tokenizer() -> PreTrainedTokenizerFast:
    """The tokenizer that knows every world of `PEOPLE` people with names of the two parts."""
    guilds = [name for part in (TRAIN, EVAL) for name in world_names(part, PARTS)["guilds"]]
    return build_tokenizer(all_words(), tags=TAGS, phrases=guilds, punctuation=PUNCTUATION + '"', max_length=512)
