"""The one error of bad data. Missing files and broken networks stay ``OSError``."""


class DataError(ValueError):
    """A file or an argument that is not what it should be: broken, hostile or of another kind.

    Example:
        >>> import nsm
        >>> try:
        ...     nsm.data.read_idx(b"not an idx file", name="digits")
        ... except nsm.data.DataError as error:
        ...     print(error)
        Expected digits to start with an idx magic 00 00 08 nn, but got 6e 6f 74 20
    """
