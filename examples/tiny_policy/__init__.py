"""The embedded default's policy: compact prompts, word-level tokenizer, demonstrations and warm start."""
