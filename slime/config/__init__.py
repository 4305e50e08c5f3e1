"""Every option, typed and checked. Imports no torch."""
