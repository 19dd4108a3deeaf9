"""Functions of one fp32 number for compiled loops, without branches, so that compilers can vectorize a loop over them.

The polynomial of `exp` interpolates at Chebyshev nodes, with coefficients computed in float64. Its error is below 0.2
of half an ulp, so rounding dominates: `exp` is within 2 ulp of float64.
"""

import numpy as np

from dithc.engine.hcops.numba.compiler import from_bits, helper, multiply_add

HALF, ONE, THREE = np.float32(0.5), np.float32(1), np.float32(3)

LOG2_E = np.float32(1.4426950408889634)
# ln 2 in two parts. The first has 11 bits, so that its product with an integer below 2^13 is exact.
LN2_UPPER, LN2_LOWER = np.float32(0.693359375), np.float32(-2.12194440054690583e-4)
# Outside these bounds exp is inf or 0 in fp32. Inside them the power of two splits into two normal numbers.
EXP_LARGEST, EXP_SMALLEST = np.float32(89), np.float32(-105)
# (exp(r) - 1 - r) / r^2 over |r| <= ln(2) / 2
E2, E3, E4, E5, E6 = (
    np.float32(c) for c in (0.5, 0.1666657666611994, 0.041666554212995324, 0.008363232883680615, 0.0013926250830334215)
)
BIAS, MANTISSA_BITS = np.int32(127), np.int32(23)

# tanh-GELU is x * sigmoid(z) with z = 2 sqrt(2 / pi) (x + 0.044715 x^3).
Z1, Z3 = np.float32(1.5957691216057308), np.float32(1.5957691216057308 * 0.044715)
# sigmoid'(z) is 0 in fp32 beyond this value, but z'(x) could overflow.
GELU_FLAT = np.float32(12)


@helper()
def exp(x: np.float32) -> np.float32:
    """Return e^x as 2^n e^r with integer n and |r| <= ln(2) / 2."""
    bounded = min(max(x, EXP_SMALLEST), EXP_LARGEST)  # converts to an integer even if x is inf or nan
    n = np.floor(multiply_add(bounded, LOG2_E, HALF))
    r = multiply_add(-n, LN2_LOWER, multiply_add(-n, LN2_UPPER, bounded))
    q = multiply_add(multiply_add(multiply_add(multiply_add(E6, r, E5), r, E4), r, E3), r, E2)
    mantissa = ONE + multiply_add(q * r, r, r)
    exponent = np.int32(n)
    upper = np.int32(exponent >> np.int32(1))
    # Two factors, because 2^-150 and 2^128 are not fp32 numbers, but results from 2^-149 to the largest are.
    result = mantissa * _power_of_two(upper) * _power_of_two(np.int32(exponent - upper))
    return result if x == x else x


@helper()
def _power_of_two(n: np.int32) -> np.float32:
    power: np.float32 = from_bits(np.uint32(np.int32(n + BIAS) << MANTISSA_BITS))
    return power


@helper()
def sigmoid(x: np.float32) -> np.float32:
    """Return 1 / (1 + e^-x) from e^-|x|, which does not overflow; exact to a few ulp in the negative tail too."""
    e = exp(-abs(x))
    return (ONE if x >= 0 else e) / (ONE + e)


@helper()
def silu(x: np.float32) -> np.float32:
    """Return x sigmoid(x); nan at -inf, as in PyTorch."""
    return x * sigmoid(x)


@helper()
def silu_gradient(x: np.float32) -> np.float32:
    """Return sigmoid(x) + x sigmoid'(x), with sigmoid' = e / (1 + e)^2 instead of s (1 - s), which cancels."""
    e = exp(-abs(x))
    inverse = ONE / (ONE + e)
    gradient: np.float32 = multiply_add(x * e * inverse, inverse, (ONE if x >= 0 else e) * inverse)
    return gradient


@helper()
def gelu(x: np.float32) -> np.float32:
    """Return the tanh form of the GELU; nan at -inf, as in PyTorch."""
    return x * sigmoid(x * multiply_add(Z3, x * x, Z1))


@helper()
def gelu_gradient(x: np.float32) -> np.float32:
    """Return sigmoid(z) + x sigmoid'(z) z'(x); nan at inf, as in PyTorch, and finite elsewhere."""
    bounded = min(max(x, -GELU_FLAT), GELU_FLAT)
    z = bounded * multiply_add(Z3, bounded * bounded, Z1)
    e = exp(-abs(z))
    inverse = ONE / (ONE + e)
    slope = multiply_add(THREE * Z3, bounded * bounded, Z1)
    inner: np.float32 = multiply_add(bounded * e * inverse * inverse, slope, (ONE if z >= 0 else e) * inverse)
    return inner + (x - x)
