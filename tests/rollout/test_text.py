import pytest
from helpers.text_tokenizers import KINDS

from turncredit.rollout.text import plain, plain_text, token_range

TEXTS = [
    "<think>go 😀 now</think><action>open 門 door</action>",
    "<think>門を開ける</think><action>開</action>",
    "é😀<think>é😀é</think><action>naïve 👩‍👩‍👧 é</action>é",
    "<think>plain words</think><action>open door</action>",
]


def every(tokenizer):
    return lambda ids: tokenizer.decode(list(ids), skip_special_tokens=False, clean_up_tokenization_spaces=False)


def bytes_of(tokenizer, ids):
    """The bytes that every id stands for, found from the vocabulary and not by decoding."""
    from transformers.convert_slow_tokenizer import bytes_to_unicode

    table = {character: byte for byte, character in bytes_to_unicode().items()}
    result = []
    for token in tokenizer.convert_ids_to_tokens(list(ids)):
        if token.startswith("<0x"):
            result.append(bytes([int(token[3:5], 16)]))
        elif token in tokenizer.get_added_vocab():
            result.append(token.encode())
        elif "<0x41>" in tokenizer.get_vocab():
            result.append(token.replace("▁", " ").encode())
        else:
            result.append(bytes(table[character] for character in token))
    return result


def expected_range(pieces, start, end):
    """First and last token that hold a byte of the half-open byte range."""
    places, at = [], 0
    for index, piece in enumerate(pieces):
        if at < end and at + len(piece) > start:
            places.append(index)
        at += len(piece)
    return places[0], places[-1] + 1


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("text", TEXTS)
def test_a_span_holds_every_token_of_its_characters(kind, text):
    tokenizer = KINDS[kind]()
    ids = tokenizer.encode(text, add_special_tokens=False)
    decode = every(tokenizer)
    assert decode(ids) == text
    pieces = bytes_of(tokenizer, ids)
    offset = len(b"".join(pieces)) - len(text.encode())  # the blank in front
    for tag in ("think", "action"):
        start = text.index(f"<{tag}>") + len(tag) + 2
        end = text.index(f"</{tag}>")
        found = token_range(decode, ids, text, (start, end))
        wanted = expected_range(pieces, *(len(text[:place].encode()) + offset for place in (start, end)))
        assert found == wanted
        assert text[start:end] in decode(ids[slice(*found)])


@pytest.mark.parametrize("kind", KINDS)
def test_a_response_that_ends_inside_a_character_keeps_its_tokens(kind):
    tokenizer = KINDS[kind]()
    whole = tokenizer.encode("go 😀", add_special_tokens=False)
    decode = every(tokenizer)
    for cut in (1, 2, 3):
        ids = whole[:-cut]
        text = decode(ids)
        assert text.startswith("go ")
        assert text.endswith("�")
        assert token_range(decode, ids, text, (3, len(text)))[1] == len(ids)
        closed = [*ids, tokenizer.eos_token_id]
        assert token_range(decode, closed, text, (3, len(text)), closing=1)[1] == len(ids)


@pytest.mark.parametrize("kind", KINDS)
def test_outer_blanks_are_left_out_and_nothing_is_none(kind):
    tokenizer = KINDS[kind]()
    decode = every(tokenizer)
    ids = tokenizer.encode("a \n 門 \n b", add_special_tokens=False)
    text = decode(ids)
    start, end = token_range(decode, ids, text, (1, len(text) - 1))
    assert decode(ids[start:end]).strip() == "門"
    assert decode(ids[end:]).startswith((" ", "\n"))
    assert token_range(decode, ids, text, (1, 3)) is None
    assert token_range(decode, ids, text, None) is None


def test_lone_surrogates_become_the_replacement_character():
    assert plain_text("a\ud800b") == "a�b"
    assert plain_text("\udce9") == "�"
    assert plain_text("\ud83d\ude00 門 \x00") == "😀 門 \x00"
    assert plain({"a": ["\ud800", ("\udfff", 1)], "b": None}) == {"a": ["�", ("�", 1)], "b": None}
