"""Measurements that float32 cannot hold are missing, as NaN is."""

import math

import numpy as np
import pytest

from cab.files.numbers import LARGEST_FLOAT, is_finite
from cab.files.text_table import parse_number


@pytest.mark.parametrize("value", [math.nan, math.inf, math.nextafter(LARGEST_FLOAT, math.inf), 1e308, 10**400])
@pytest.mark.parametrize("sign", [1, -1])
def test_no_measurement(value, sign):
    assert not is_finite(sign * value)
    assert parse_number(str(sign * value)) is None


@pytest.mark.parametrize("value", [0.0, -0.0, 5e-324, 1, LARGEST_FLOAT, -LARGEST_FLOAT, np.float32(LARGEST_FLOAT)])
def test_a_measurement(value):
    assert is_finite(value)
    assert parse_number(str(value)) == float(str(value))


@pytest.mark.parametrize("kind", [np.float32, np.float64])
def test_each_number_of_an_array(kind):
    with np.errstate(over="ignore"):
        values = np.array([1, math.nan, -math.inf, LARGEST_FLOAT, 1e39], dtype=kind)
    assert is_finite(values).tolist() == [True, False, False, True, False]
    assert not is_finite(None)
