"""How long a step takes, learned from the steps that were run."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

    from radixserve_runtime.scheduler.plan import Chunk


@dataclass(frozen=True, slots=True)
class StepFeatures:
    """What a step's duration depends on."""

    rows: int
    """Sequences whose next token is drawn: rows of the LM head, and decode tokens."""
    prefill_tokens: int
    """Tokens of prefill, and of drafts: those beside the one that a decode is in any case."""
    pairs: float
    """(query token, key token) pairs of attention."""

    @staticmethod
    def of(chunks: Iterable[Chunk]) -> StepFeatures:
        """Features of a step, before it is computed."""
        rows = prefill_tokens = 0
        pairs = 0.0
        for chunk in chunks:
            rows += chunk.completes
            is_decode = chunk.completes and chunk.count == 1 + chunk.sequence.num_draft
            prefill_tokens += chunk.count - is_decode
            pairs += chunk.count * (chunk.start + (chunk.count + 1) / 2)
        return StepFeatures(rows, prefill_tokens, pairs)

    @staticmethod
    def of_decodes(starts: Iterable[int]) -> StepFeatures:
        """Features of one token each after so many, without drafts."""
        lengths = [start + 1 for start in starts]
        return StepFeatures(len(lengths), 0, float(sum(lengths)))

    def vector(self) -> tuple[float, ...]:
        """With the constant in front."""
        return (1.0, float(self.rows), float(self.prefill_tokens), self.pairs)

    def bucket(self) -> tuple[int, int, int]:
        """Steps that are alike: the same power of two in rows and tokens, of four in pairs."""
        return (self.rows.bit_length(), self.prefill_tokens.bit_length(), int(self.pairs).bit_length() // 2)


@dataclass(slots=True)
class _Bucket:
    mean: tuple[float, ...]
    duration_s: float
    count: int
    last_step: int


#: Seconds: of a step at all, a row, a prefill token, a pair. About a model of 100 million weights on two CPU cores; only
#: the first steps depend on it.
_PRIOR = (10e-3, 0.5e-3, 0.6e-3, 1e-7)
_PRIOR_WEIGHT = 0.05
_MAX_WEIGHT = 32
_FORGET_STEPS = 4096


class CostModel:
    """duration = base + rows * r + prefill tokens * t + attention pairs * p, with all four at least 0.

    Steps are averaged in buckets of alike steps and the four coefficients fitted to the buckets by least squares of the
    *relative* error, drawn slightly to a prior. Averages in buckets keep a thousand equal decode steps from drowning
    the few that carry prefill; the relative error, and a bucket's mean that follows a faster step at once and a slower
    one slowly, make warm-up and stalls weigh little. The fit's sums are kept up with every step, so fitting costs the same
    however many kinds of steps there were, and happens only when a prediction is asked for after new steps.
    """

    def __init__(self) -> None:
        self._buckets: dict[tuple[int, int, int], _Bucket] = {}
        self._coefficients: tuple[float, ...] = _PRIOR
        self._stale = False
        self._step = 0
        self._sums = _NormalEquations()

    @property
    def coefficients(self) -> tuple[float, ...]:
        """Seconds of (a step, a row, a prefill token, a pair)."""
        if self._stale:
            self._coefficients = self._fit()
            self._stale = False
        return self._coefficients

    def observe(self, features: StepFeatures, duration_s: float) -> None:
        """A step took so long. Durations that no clock can mean (not finite, not positive) are ignored."""
        if not math.isfinite(duration_s) or duration_s <= 0:
            return
        self._step += 1
        self._stale = True
        bucket = self._buckets.get(features.bucket())
        if bucket is None:
            bucket = self._buckets[features.bucket()] = _Bucket(features.vector(), duration_s, 1, self._step)
        else:
            self._sums.add(bucket, -1.0)
            self._average(bucket, features, duration_s)
        if self._step % _FORGET_STEPS:
            self._sums.add(bucket, 1.0)
        else:
            self._sums = _NormalEquations.of(self._buckets.values(), self._step)

    def _average(self, bucket: _Bucket, features: StepFeatures, duration_s: float) -> None:
        faster = duration_s < bucket.duration_s
        rate = 0.5 if faster and bucket.count < 4 else 0.2 if faster else 0.1
        duration_s = min(duration_s, 2 * bucket.duration_s)
        bucket.duration_s += rate * (duration_s - bucket.duration_s)
        bucket.mean = tuple(old + rate * (new - old) for old, new in zip(bucket.mean, features.vector(), strict=True))
        bucket.count += 1
        bucket.last_step = self._step

    def predict(self, features: StepFeatures) -> float:
        """Seconds."""
        return sum(c * x for c, x in zip(self.coefficients, features.vector(), strict=True))

    def pure_decode(self, features: StepFeatures) -> float:
        """Seconds of a step of decodes alone: the prediction, or what such steps took if that is less."""
        predicted = self.predict(features)
        bucket = self._buckets.get(features.bucket())
        return predicted if bucket is None or bucket.count < 4 else min(predicted, bucket.duration_s)

    def prefill_within(self, slack_s: float, start: int) -> int:
        """How many tokens from position `start` on a step can take in beside its other work in `slack_s` seconds."""
        if slack_s <= 0:
            return 0
        _, _, per_token, per_pair = self.coefficients
        linear = max(per_token + per_pair * start, 1e-9)
        quadratic = per_pair / 2
        # quadratic * n^2 + linear * n = slack, in the form that is exact for a small quadratic term.
        return int(2 * slack_s / (linear + math.sqrt(linear * linear + 4 * quadratic * slack_s)))

    def prefill_cost(self, start: int, count: int) -> float:
        """Seconds that a chunk adds to a step."""
        _, _, per_token, per_pair = self.coefficients
        return per_token * count + per_pair * count * (start + count / 2)

    def _fit(self) -> tuple[float, ...]:
        scaled = _solve_nonnegative(*self._sums.with_prior(self._step))
        return tuple(value * prior for value, prior in zip(scaled, _PRIOR, strict=True))


class _NormalEquations:
    """Sums over the buckets, weighted by how often and how lately each was seen: those of least squares, in units of the prior.

    A bucket's weight halves in every `_FORGET_STEPS` steps in which it isn't seen. Here it is instead the new ones that count more, relative
    to a step `since`, so that nothing but the bucket that was seen has to be touched. The sums are made anew before the
    weights get large.
    """

    def __init__(self, since: int = 0) -> None:
        self._since = since
        self._matrix = [[0.0] * 4 for _ in range(4)]
        self._target = [0.0] * 4

    @staticmethod
    def of(buckets: Iterable[_Bucket], step: int) -> _NormalEquations:
        """Of all buckets."""
        sums = _NormalEquations(step)
        for bucket in buckets:
            sums.add(bucket, 1.0)
        return sums

    def add(self, bucket: _Bucket, sign: float) -> None:
        """Add a bucket as it is now, or take it out again (-1)."""
        weight = sign * min(bucket.count, _MAX_WEIGHT) * 2.0 ** ((bucket.last_step - self._since) / _FORGET_STEPS)
        row = [x * prior / bucket.duration_s for x, prior in zip(bucket.mean, _PRIOR, strict=True)]
        for i in range(4):
            self._target[i] += weight * row[i]
            for j in range(4):
                self._matrix[i][j] += weight * row[i] * row[j]

    def with_prior(self, step: int) -> tuple[list[list[float]], list[float]]:
        """Matrix and right-hand side at a step, drawn slightly to the prior."""
        scale = 2.0 ** ((self._since - step) / _FORGET_STEPS)
        matrix = [
            [scale * value + (_PRIOR_WEIGHT if i == j else 0.0) for j, value in enumerate(row)]
            for i, row in enumerate(self._matrix)
        ]
        return matrix, [scale * value + _PRIOR_WEIGHT for value in self._target]


def _solve_nonnegative(matrix: list[list[float]], target: list[float]) -> list[float]:
    """Least squares by its normal equations; unknowns that come out negative are set to 0 and left out, the most negative first."""
    kept = list(range(len(target)))
    while kept:
        values = _solve([[matrix[i][j] for j in kept] for i in kept], [target[i] for i in kept])
        worst = min(range(len(kept)), key=values.__getitem__)
        if values[worst] >= 0:
            break
        del kept[worst]
    else:
        values = []
    solution = [0.0] * len(target)
    for index, value in zip(kept, values, strict=True):
        solution[index] = value
    return solution


def _solve(matrix: list[list[float]], target: list[float]) -> list[float]:
    """Gaussian elimination; the matrix is positive definite, as the prior is added to its diagonal."""
    size = len(target)
    rows = [[*row, value] for row, value in zip(matrix, target, strict=True)]
    for i in range(size):
        pivot = max(range(i, size), key=lambda k: abs(rows[k][i]))
        rows[i], rows[pivot] = rows[pivot], rows[i]
        for k in range(i + 1, size):
            factor = rows[k][i] / rows[i][i]
            for j in range(i, size + 1):
                rows[k][j] -= factor * rows[i][j]
    solution = [0.0] * size
    for i in reversed(range(size)):
        solution[i] = (rows[i][size] - sum(rows[i][j] * solution[j] for j in range(i + 1, size))) / rows[i][i]
    return solution
