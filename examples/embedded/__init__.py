"""How the embedded policies are made: tokenizers of words, demonstrations of scripted players, imitation."""
