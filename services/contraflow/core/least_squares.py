"""Linear least squares of a handful of unknowns."""

from __future__ import annotations

from collections.abc import Sequence


def solve(rows: Sequence[Sequence[float]], values: Sequence[float]) -> list[float]:
    """The x that brings each row · x closest to its value, in the sum of squares.

    Raises ValueError if the rows do not determine x.
    """
    count = len(rows[0])
    # Scaled, so that unknowns of very different sizes lose no digits to each other.
    scales = [max(abs(row[i]) for row in rows) or 1.0 for i in range(count)]
    scaled = [[entry / scale for entry, scale in zip(row, scales, strict=True)] for row in rows]
    matrix = [[sum(row[i] * row[j] for row in scaled) for j in range(count)] for i in range(count)]
    right = [
        sum(row[i] * value for row, value in zip(scaled, values, strict=True)) for i in range(count)
    ]
    return [x / scale for x, scale in zip(_solve_system(matrix, right), scales, strict=True)]


def _solve_system(matrix: Sequence[Sequence[float]], right: Sequence[float]) -> list[float]:
    """The x with matrix · x = right; entries of about one.

    Raises ValueError if there is no single one.
    """
    count = len(right)
    system = [[*row, value] for row, value in zip(matrix, right, strict=True)]
    for i in range(count):
        best = max(range(i, count), key=lambda row: abs(system[row][i]))
        system[i], system[best] = system[best], system[i]
        if abs(system[i][i]) < 1e-12:
            raise ValueError("the rows do not determine the unknowns")
        for row in range(count):
            if row != i:
                factor = system[row][i] / system[i][i]
                system[row] = [a - factor * b for a, b in zip(system[row], system[i], strict=True)]
    return [system[i][count] / system[i][i] for i in range(count)]


def inverse(matrix: Sequence[Sequence[float]]) -> list[list[float]]:
    """Of a symmetric positive definite matrix, as normal equations with a prior have it."""
    left = [list(row) for row in matrix]
    for i, row in enumerate(left):
        pivot, row[i] = row[i], 1.0
        left[i] = row = [entry / pivot for entry in row]
        for j, other in enumerate(left):
            if j != i:
                factor, other[i] = other[i], 0.0
                left[j] = [a - factor * b for a, b in zip(other, row, strict=True)]
    return left
