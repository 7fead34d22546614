"""Anthropic's Messages API over the same programs as chat."""
