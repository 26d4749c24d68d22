"""Small tokenizers of the kinds that real models have, and chat templates as they are found."""

from __future__ import annotations

from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

CHATML = (
    "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
OPENS = CHATML.replace("assistant\n{% endif", "assistant\n<think>\n{% endif")
SWITCH = CHATML.replace(
    "assistant\n{% endif",
    "assistant\n{% if enable_thinking is defined and not enable_thinking %}<think>\n\n</think>\n\n{% endif %}{% endif",
)
CLOCK = "{% set today = strftime_now('%d %B %Y') %}Today is {{ today }}.\n" + CHATML
PARTS_ONLY = CHATML.replace(
    "{{ m['content'] }}",
    "{% for part in m['content'] %}{% if part['type'] == 'text' %}{{ part['text'] }}{% endif %}{% endfor %}",
)
NO_SYSTEM = (
    "{% if messages[0]['role'] == 'system' %}{{ raise_exception('System role not supported') }}{% endif %}" + CHATML
)
CORPUS = [
    "the red door and the green door open slowly " * 4,
    "<|im_start|>user\nYou are in a room. Say the colour.<|im_end|>\n" * 4,
    "think about the action </action> <action> open door </action>\n\n" * 4,
]


def byte_level_tokenizer(template: str = CHATML) -> PreTrainedTokenizerFast:
    """Byte-level BPE, as Qwen and Llama 3 have it: blanks and bytes stand in the vocabulary as other characters."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    special = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
    trainer = trainers.BpeTrainer(
        vocab_size=400, initial_alphabet=alphabet, special_tokens=special, show_progress=False
    )
    tokenizer.train_from_iterator(CORPUS, trainer)
    tokenizer.add_tokens([AddedToken(tag, normalized=False, special=False) for tag in ("<think>", "</think>")])
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        pad_token="<|endoftext|>",
        eos_token="<|im_end|>",
        chat_template=template,
        padding_side="left",
        clean_up_tokenization_spaces=False,
    )


def byte_fallback_tokenizer(template: str = CHATML) -> PreTrainedTokenizerFast:
    """SentencePiece's kind, as Llama 2 has it: a blank in front, bytes for characters outside the vocabulary."""
    names = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256))]
    vocabulary = {name: index for index, name in enumerate([*names, "▁", *map(chr, range(33, 127)), "▁d", "▁do"])}
    merges = [("▁", "d"), ("▁d", "o")]
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=merges, unk_token="<unk>", byte_fallback=True))
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        unk_token="<unk>",
        bos_token="<s>",
        eos_token="</s>",
        pad_token="</s>",
        chat_template=template.replace("<|im_start|>", "<s>").replace("<|im_end|>", "</s>"),
        padding_side="left",
        clean_up_tokenization_spaces=False,
    )


KINDS = {"byte level": byte_level_tokenizer, "byte fallback": byte_fallback_tokenizer}
