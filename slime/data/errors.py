class DataError(ValueError):
    """Something in the user's files is wrong; the message says where, what, and what would be right."""
