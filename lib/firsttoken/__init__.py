"""First Token: the library behind an interactive textbook of LLM inference.

Import a topic by its name, as `from firsttoken.kv_cache import kv_cache_bytes`.
The package itself imports nothing, so that a light chapter starts at once.
"""
