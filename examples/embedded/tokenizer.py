"""A small tokenizer with a chat template, saved and loaded like any Hugging Face tokenizer.

One token is a word, or a whole name such as ``cabinet 1``: names are what the policy reads and types most, and one
token each makes prompts half as long and copying a name a single choice.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers
from transformers import PreTrainedTokenizerFast

PAD, UNKNOWN, END = "<pad>", "<unk>", "<end>"
ROLES = ("<system>", "<user>", "<assistant>")
SPECIAL = (PAD, UNKNOWN, END, *ROLES)
TAGS = ("<think>", "</think>", "<action>", "</action>")
CHAT_TEMPLATE = (
    "{% for message in messages %}<{{ message['role'] }}> {{ message['content'] }} <end> {% endfor %}"
    "{% if add_generation_prompt %}<assistant>{% endif %}"
)
PUNCTUATION = ".,:;?!'()/-"


def vocabulary(
    words: Iterable[str],
    kinds: Iterable[str],
    copies: int,
    tags: Iterable[str] = TAGS,
    phrases: Iterable[str] = (),
    punctuation: str = PUNCTUATION,
    verbs: Iterable[str] = (),
) -> list[str]:
    """The entries in order: special tokens, tags, marks, verbs, digits, words, kinds, names, phrases, each sorted."""
    opened = [f"{verb.lower()}[" for verb in verbs]
    fixed = [*SPECIAL, *tags, *punctuation, *opened, *["]"] * bool(opened), *map(str, range(1, 10))]
    sorts = sorted({kind.lower() for kind in kinds})
    plain = sorted({word.lower() for word in words} - set(fixed) - set(sorts))
    numbered = [f"{kind} {number}" for kind in sorts for number in range(1, copies + 1)]
    return list(dict.fromkeys([*fixed, *plain, *sorts, *numbered, *sorted(phrase.lower() for phrase in phrases)]))


def token_pattern(phrases: Iterable[str], numbered: bool, punctuation: str, verbs: Sequence[str] = ()) -> str:
    """The regular expression of one token: an opened verb, a phrase, a name with its number, a mark, or a run of other
    characters."""
    marks = punctuation.replace("-", "") + ("-" if "-" in punctuation else "")
    longest_first = sorted({phrase.lower() for phrase in phrases}, key=lambda phrase: (-len(phrase), phrase))
    names = [rf"\b(?:{'|'.join(map(re.escape, longest_first))})\b"] if longest_first else []
    commands = [rf"\b(?:{'|'.join(map(re.escape, verbs))})\[", r"\]"] if verbs else []
    run = rf"[^\s\]{marks}]+" if verbs else rf"[^\s{marks}]+"
    return "|".join([*commands, *names, *([r"[a-z]+ \d+"] if numbered else []), f"[{marks}]", run])


def build_tokenizer(
    words: Iterable[str],
    kinds: Iterable[str] = (),
    *,
    copies: int = 4,
    max_length: int = 512,
    tags: Sequence[str] = TAGS,
    phrases: Iterable[str] = (),
    punctuation: str = PUNCTUATION,
    verbs: Sequence[str] = (),
) -> PreTrainedTokenizerFast:
    """A tokenizer of words and names: lower-cased, decoded with single spaces.

    Commands of the text engine (lower case, single spaces, no punctuation) survive encoding and decoding exactly as
    long as the vocabulary knows their names. The tags are ordinary tokens, so that decoding keeps them; pad,
    unknown, end and roles are special.

    Args:
        words: single words the policy should know; others become ``<unk>``.
        kinds: kinds of things and furniture; ``mug`` gives the entries ``mug`` and ``mug 1`` .. ``mug {copies}``.
            Without any, a number is a word of its own.
        copies: largest number in a name.
        max_length: longest sequence the policy was trained for, in tokens.
        tags: marks of the policy's format.
        phrases: names of several words that are one token each.
        punctuation: characters that are tokens wherever they stand; no brackets, carets or backslashes.
        verbs: verbs of commands such as ``click[buy now]``; ``click[`` and ``]`` are tokens, decoded without spaces
            inside the brackets. Without any there are no such tokens.

    Raises:
        ValueError: a word holds a space or `copies` is not positive.
    """
    words, kinds, phrases = list(words), list(kinds), list(phrases)
    split = [word for word in (*words, *kinds) if len(word.split()) != 1]
    if split:
        raise ValueError(f"build_tokenizer: words must hold no spaces, got {split[0]!r}; split texts into words first")
    if copies < 1:
        raise ValueError(f"build_tokenizer: copies must be at least 1, got {copies}; small houses need 4")
    names = vocabulary(words, kinds, copies, tags, phrases, punctuation, verbs)
    entries = {entry: index for index, entry in enumerate(names)}
    tokenizer = Tokenizer(models.WordLevel(entries, unk_token=UNKNOWN))
    tokenizer.normalizer = normalizers.Lowercase()
    pattern = token_pattern(phrases, bool(kinds), punctuation, [verb.lower() for verb in verbs])
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex(pattern), "removed", invert=True)
    if verbs:
        joined = [decoders.WordPiece(prefix="##", cleanup=False), decoders.Fuse()]
        tokenizer.decoder = decoders.Sequence([*joined, decoders.Replace("[ ", "["), decoders.Replace(" ]", "]")])
    tokenizer.add_tokens([AddedToken(tag, normalized=False, special=False) for tag in tags])
    tokenizer.add_special_tokens([AddedToken(t, normalized=False, special=True) for t in SPECIAL])
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
