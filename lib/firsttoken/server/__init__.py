"""An HTTP server for the engine: the part of OpenAI's interface that clients of vLLM use.

`python -m firsttoken.server` starts it, as two processes. Python runs one thread of a process at a
time, and work for clients must not slow the engine down. One process runs the engine
(`engine_process`). In the other, the front, an event loop reads requests (`schema`, `translation`),
sends them to the engine (`engine_client`), writes answers (`answers`) and counts (`counters`).
`messages` holds what the two send each other.
"""
