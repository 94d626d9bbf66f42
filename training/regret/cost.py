"""The cost of weights around a state's, as a smooth function fitted to what candidates cost.

    cost(x) = gradient . d + 1/2 d' curvature d + constant,     d = centred(x) - centre

a ridge regression in the C - 1 directions that matter, with the curvature's negative eigenvalues
set to 0: the function is convex, and a policy that minimises it does not run away along a
direction in which a fit to noise bends down.

Shapes: K candidates, C classes.
"""

from dataclasses import dataclass

import numpy as np

from training.regret.candidates import Float, centred

RIDGE = 0.3
"""On the quadratic terms, in units of what a candidate at distance 1 contributes."""
LEAST_RIDGE = 1e-3
"""On the linear ones: they are there to be found."""


@dataclass(frozen=True, slots=True, eq=False)
class LocalCost:
    """A convex quadratic around a point.

    Attributes:
        centre: [C] centred log-shares.
        gradient: [C] there; it sums to 0.
        curvature: [C, C] symmetric, no eigenvalue negative; rows sum to 0.
    """

    centre: Float
    gradient: Float
    curvature: Float

    def at(self, log_shares: Float) -> Float:
        """What log-shares [..., C] cost, against the centre: [...]."""
        d = centred(log_shares) - self.centre  # [..., C]
        bend = np.einsum("...i,ij,...j->...", d, self.curvature, d)
        cost: Float = d @ self.gradient + 0.5 * bend
        return cost


def fit_cost(log_shares: Float, costs: Float, centre: Float) -> LocalCost:
    """Fit to candidates.

    Args:
        log_shares: [K, C] of the candidates.
        costs: [K] what each cost.
        centre: [C] log-shares around which the fit is to be good.
    """
    centre = centred(centre)
    basis = _basis(len(centre))  # [C, C - 1]
    z = (centred(log_shares) - centre) @ basis  # [K, C - 1]
    rows, columns = np.triu_indices(z.shape[1])
    squares = z[:, rows] * z[:, columns] * np.where(rows == columns, 0.5, 1.0)
    design = np.hstack([np.ones((len(z), 1)), z, squares])  # [K, 1 + ...]
    # An entry off the diagonal stands for two: so the penalty is on the matrix's Frobenius norm,
    # which knows no basis.
    bent = RIDGE * np.where(rows == columns, 1.0, 2.0)
    ridge = np.concatenate([[0.0], np.full(z.shape[1], LEAST_RIDGE), bent])
    solution = np.linalg.solve(design.T @ design + np.diag(ridge), design.T @ costs)
    bend = np.zeros((z.shape[1], z.shape[1]))
    bend[rows, columns] = bend[columns, rows] = solution[1 + z.shape[1] :]
    return LocalCost(
        centre=centre,
        gradient=basis @ solution[1 : 1 + z.shape[1]],
        curvature=basis @ _convex(bend) @ basis.T,
    )


def _basis(classes: int) -> Float:
    """Orthonormal columns that are all orthogonal to (1, ..., 1): [C, C - 1]."""
    ones = np.ones((classes, 1))
    complete = np.linalg.qr(np.hstack([ones, np.eye(classes)[:, : classes - 1]]))[0]
    basis: Float = complete[:, 1:]
    return basis


def _convex(matrix: Float) -> Float:
    values, vectors = np.linalg.eigh(matrix)
    kept: Float = (vectors * np.maximum(values, 0.0)) @ vectors.T
    return kept
