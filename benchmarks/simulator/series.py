"""Service over time, in as many stretches as a plot can show, however long the simulation runs."""

from __future__ import annotations


class Series:
    """Sums by stretch of time for several names. When there are too many stretches, neighbours are merged."""

    def __init__(self, num_names: int, width_s: float = 1.0, max_stretches: int = 128) -> None:
        self.width_s = width_s
        self._num_names = num_names
        self._max = max_stretches
        self.sums: list[list[float]] = []

    def add(self, time_s: float, name: int, value: float) -> None:
        """Something happened at a time. O(1) amortised."""
        index = int(time_s / self.width_s)
        while index >= self._max:
            self._merge()
            index = int(time_s / self.width_s)
        while index >= len(self.sums):
            self.sums.append([0.0] * self._num_names)
        self.sums[index][name] += value

    def _merge(self) -> None:
        pairs = [self.sums[index : index + 2] for index in range(0, len(self.sums), 2)]
        self.sums = [[sum(values) for values in zip(*pair, strict=True)] for pair in pairs]
        self.width_s *= 2
