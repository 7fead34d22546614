"""Starts the processes of one engine, restarts the ones that die, and leaves none behind."""
