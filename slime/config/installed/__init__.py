"""Options of the installed SGLang, of its router and of Megatron-core, read off their source without importing them.

Importing them takes seconds and brings torch along; their source says the same in milliseconds, and always that of the
installed version.
"""
