"""Search-QA's embedded default: compact prompts, vocabulary, scripted player, demonstrations and worlds."""
