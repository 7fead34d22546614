"""The runtime process: scheduler, radix cache, model, sampler and grammar masks."""
