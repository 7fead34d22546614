"""Tenants: who asks, what they may ask for, how much of it, and what it came to."""
