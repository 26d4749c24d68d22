"""The embedded default's policy for WebShop: compact prompts, tokens, scripted player and demonstrations."""
