"""The loop: receive, schedule, run, sample, emit."""
