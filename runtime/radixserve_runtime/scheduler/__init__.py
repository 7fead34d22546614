"""Which tokens go through the model next: plain Python without torch, with an injected clock."""
