"""The tokenizer process: identity, templates, text to tokens and back, and the state of every program."""
