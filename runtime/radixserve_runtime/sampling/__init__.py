"""Drawing tokens: logits to ids, log-probabilities, and when a generation ends."""
