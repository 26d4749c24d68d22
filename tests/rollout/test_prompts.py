import pytest
from helpers.tiny import tiny_tokenizer

from turncredit.rollout import render_prompt, with_privileged_context
from turncredit.rollout.prompts import check_tokenizer

MESSAGES = [
    {"role": "system", "content": "rules"},
    {"role": "user", "content": "say"},
    {"role": "user", "content": "door"},
]


def test_privileged_text_goes_inside_the_first_user_message_and_nothing_else_changes():
    before = [dict(m) for m in MESSAGES]
    teacher = with_privileged_context(MESSAGES, "hint")
    assert teacher == [MESSAGES[0], {"role": "user", "content": "hint\n\nsay"}, MESSAGES[2]]
    assert before == MESSAGES


def test_a_prompt_without_a_user_message_is_refused():
    with pytest.raises(ValueError, match=r"messages must hold a user message, got roles \['system'\]"):
        with_privileged_context(MESSAGES[:1], "hint")


def test_rendering_ends_with_the_generation_prompt():
    tokenizer = tiny_tokenizer()
    ids = render_prompt(tokenizer, [{"role": "user", "content": "say door"}])
    assert tokenizer.convert_ids_to_tokens(list(ids)) == ["<user>", "say", "door", "<end>", "<assistant>"]


def test_a_tokenizer_that_cannot_serve_is_refused():
    tokenizer = tiny_tokenizer()
    tokenizer.chat_template = None
    with pytest.raises(ValueError, match="tokenizer must have a chat template"):
        check_tokenizer(tokenizer)
    tokenizer = tiny_tokenizer()
    tokenizer.pad_token = None
    with pytest.raises(ValueError, match="tokenizer must have a pad token"):
        check_tokenizer(tokenizer)
