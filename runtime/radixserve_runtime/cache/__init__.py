"""The page pool's bookkeeping and the radix tree over it. No torch here."""
