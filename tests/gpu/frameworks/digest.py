"""One line for an array's bytes, so that equal lines mean equal to the last bit."""

import hashlib


def show(name, array):
    """Prints the name, the shape and the first digits of SHA-256 of the bytes. Takes anything that numpy can read."""
    import numpy

    array = numpy.ascontiguousarray(array)
    print(f"{name} {array.dtype} {list(array.shape)} {hashlib.sha256(array.tobytes()).hexdigest()[:16]}", flush=True)
