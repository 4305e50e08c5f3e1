class DataError(ValueError):
    """Something in the user's files is wrong; the message says which file and line, what is wrong and what would be right."""
