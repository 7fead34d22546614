"""The largest difference in service between two tenants while both had work waiting."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Iterable


class GapTracker:
    """Over all pairs of tenants and all stretches of time in which both are backlogged: the largest |W_i / w_i - W_j / w_j|.

    W is what a tenant was charged within the stretch, w its weight. Exact, not sampled. With D_ij = V_i / w_i - V_j / w_j (V:
    charged since start) a pair's largest gap is the range of D_ij while both are backlogged. D_ij only grows when i is charged,
    so it is enough to keep its maximum at those times, for (i, j) and (j, i): a step costs O(charged tenants * tenants).
    """

    def __init__(self, weights: list[float]) -> None:
        size = len(weights)
        self._weights = np.array(weights)
        self._service = np.zeros(size)
        self._backlogged = np.zeros(size, dtype=bool)
        self._highest = np.full((size, size), -np.inf)
        self.largest = 0.0
        self.pair = (-1, -1)

    @property
    def num_backlogged(self) -> int:
        """Tenants that have work waiting."""
        return int(self._backlogged.sum())

    def charge(self, charges: dict[int, float]) -> None:
        """A step was computed; charges by tenant, not divided by weights."""
        charged = np.fromiter(charges, dtype=np.int64, count=len(charges))
        self._service[charged] += np.fromiter(charges.values(), dtype=np.float64, count=len(charges)) / self._weights[charged]
        rows = charged[self._backlogged[charged]]
        if not len(rows):
            return
        others = np.where(self._backlogged, self._service, np.inf)
        highest = np.maximum(self._highest[rows], self._service[rows, None] - others[None, :])
        self._highest[rows] = highest
        gaps = highest + self._highest[:, rows].T
        place = int(gaps.argmax())
        if gaps.flat[place] > self.largest:
            self.largest = float(gaps.flat[place])
            self.pair = (int(rows[place // gaps.shape[1]]), place % gaps.shape[1])

    def set_backlogged(self, tenants: Iterable[int], backlogged: bool) -> None:
        """Tenants got work that waits, or have none any more. A stretch begins, or ends."""
        for tenant in tenants:
            if bool(self._backlogged[tenant]) == backlogged:
                continue
            self._backlogged[tenant] = backlogged
            if backlogged:
                both = self._backlogged
                difference = self._service[tenant] - self._service
                self._highest[tenant] = np.where(both, difference, -np.inf)
                self._highest[:, tenant] = np.where(both, -difference, -np.inf)
            else:
                self._highest[tenant] = -np.inf
                self._highest[:, tenant] = -np.inf
