"""A small tokenizer with a chat template, saved and loaded like any Hugging Face tokenizer.

One token is a word, or a whole name such as ``cabinet 1``: names are what the policy reads and types most, and one
token each makes prompts half as long and copying a name a single choice.
"""

from __future__ import annotations

from collections.abc import Iterable

from tokenizers import AddedToken, Regex, Tokenizer, models, normalizers, pre_tokenizers
from transformers import PreTrainedTokenizerFast

PAD, UNKNOWN, END = "<pad>", "<unk>", "<end>"
ROLES = ("<system>", "<user>", "<assistant>")
TAGS = ("<think>", "</think>", "<action>", "</action>")
CHAT_TEMPLATE = (
    "{% for message in messages %}<{{ message['role'] }}> {{ message['content'] }} <end> {% endfor %}"
    "{% if add_generation_prompt %}<assistant>{% endif %}"
)
_PUNCTUATION = ".,:;?!'()/-"
_TOKEN = r"[a-z]+ \d+|[.,:;?!'()/-]|[^\s.,:;?!'()/-]+"


def vocabulary(words: Iterable[str], kinds: Iterable[str], copies: int) -> list[str]:
    """The entries in order: special tokens, tags, punctuation, digits, words, kinds, then names, each sorted."""
    fixed = [PAD, UNKNOWN, END, *ROLES, *TAGS, *_PUNCTUATION, *map(str, range(1, 10))]
    sorts = sorted({kind.lower() for kind in kinds})
    plain = sorted({word.lower() for word in words} - set(fixed) - set(sorts))
    return [*fixed, *plain, *sorts, *(f"{kind} {number}" for kind in sorts for number in range(1, copies + 1))]


def build_tokenizer(
    words: Iterable[str], kinds: Iterable[str], *, copies: int = 4, max_length: int = 512
) -> PreTrainedTokenizerFast:
    """A tokenizer of words and names: lower-cased, decoded with single spaces.

    Commands of the text engine (lower case, single spaces, no punctuation) survive encoding and decoding exactly as
    long as the vocabulary knows their names. The four tags are ordinary tokens, so that decoding keeps them; pad,
    unknown, end and roles are special.

    Args:
        words: single words the policy should know; others become ``<unk>``.
        kinds: kinds of things and furniture; ``mug`` gives the entries ``mug`` and ``mug 1`` .. ``mug {copies}``.
        copies: largest number in a name.
        max_length: longest sequence the policy was trained for, in tokens.

    Raises:
        ValueError: a word holds a space or `copies` is not positive.
    """
    words, kinds = list(words), list(kinds)
    split = [word for word in (*words, *kinds) if len(word.split()) != 1]
    if split:
        raise ValueError(f"build_tokenizer: words must hold no spaces, got {split[0]!r}; split texts into words first")
    if copies < 1:
        raise ValueError(f"build_tokenizer: copies must be at least 1, got {copies}; small houses need 4")
    entries = {entry: index for index, entry in enumerate(vocabulary(words, kinds, copies))}
    tokenizer = Tokenizer(models.WordLevel(entries, unk_token=UNKNOWN))
    tokenizer.normalizer = normalizers.Lowercase()
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex(_TOKEN), "removed", invert=True)
    tokenizer.add_tokens([AddedToken(tag, normalized=False, special=False) for tag in TAGS])
    tokenizer.add_special_tokens([AddedToken(t, normalized=False, special=True) for t in (PAD, UNKNOWN, END, *ROLES)])
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        pad_token=PAD,
        unk_token=UNKNOWN,
        eos_token=END,
        extra_special_tokens=list(ROLES),
        chat_template=CHAT_TEMPLATE,
        padding_side="left",
        model_max_length=max_length,
        clean_up_tokenization_spaces=False,
    )
