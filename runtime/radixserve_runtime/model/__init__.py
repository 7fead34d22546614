"""The decoder of the Llama family and the loaders of its checkpoints."""
