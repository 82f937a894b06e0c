"""The types of NumPy arrays, by what they hold; what is special is named in its module.

The shape of an array is said where the array is.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

AnyArray = NDArray[Any]
Bools = NDArray[np.bool_]
Int8s = NDArray[np.int8]
Int32s = NDArray[np.int32]
Ints = NDArray[np.int64]
UInt32s = NDArray[np.uint32]
Hashes = NDArray[np.uint64]
Floats = NDArray[np.float32]
Doubles = NDArray[np.float64]
Objects = NDArray[np.object_]
