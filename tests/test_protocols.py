"""What a model and a cache promise, for every cache of the library and both backends."""

import numpy as np
import pytest

from firsttoken.architectures import Architecture
from firsttoken.protocols import check_tokens

ARCH = Architecture("tiny", 2, 16, 4, 2, 4, 24, 50)


@pytest.mark.parametrize(
    ("tokens", "message"),
    [
        ([[50]], "ids 50 … 50, expected 0 … 49"),
        ([[3, -1]], "ids -1 … 3"),
        ([1, 2], r"shape \(2,\)"),
        ([[]], r"shape \(1, 0\)"),
        ([[1.5]], "integers"),
    ],
)
def test_wrong_tokens_are_named(tokens, message):
    with pytest.raises(ValueError, match=message):
        check_tokens(ARCH, np.asarray(tokens))
    check_tokens(ARCH, np.array([[0, 49]]))
