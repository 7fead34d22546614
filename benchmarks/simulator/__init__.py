"""The real scheduler and radix cache under a virtual clock, with a cost model in place of the model."""
