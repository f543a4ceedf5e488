"""What a matrix answers, power by power, in few products of matrices.

Shapes: D features, N states, S rows, L powers.
"""

from __future__ import annotations

import torch
from torch import Tensor


def answers_of_powers(rows: Tensor, matrix: Tensor, column: Tensor, length: int) -> Tensor:
    """Return c A^l b for l below L: [D, S, L].

    All c A^j for j below T, and A^(T k) b for all k, about the root of L each: both are doubled by A^2, A^4 and so on.
    Their products are the answers.

    Args:
        rows: c, [D, S, N].
        matrix: A, [D, N, N].
        column: b, [D, N].
        length: L.
    """
    num_rows, left, right = rows.shape[1], rows, column.unsqueeze(2)
    while left.shape[1] ** 2 < num_rows**2 * length:
        left, matrix = torch.cat([left, left @ matrix], dim=1), matrix @ matrix
    together = left.shape[1] // num_rows
    while right.shape[2] * together < length:
        right, matrix = torch.cat([right, matrix @ right], dim=2), matrix @ matrix
    answers = left @ right[..., : -(-length // together)]
    return answers.unflatten(1, (together, num_rows)).permute(0, 2, 3, 1).flatten(2)[..., :length]
