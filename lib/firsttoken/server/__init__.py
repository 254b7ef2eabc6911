"""The engine behind HTTP: the part of OpenAI's interface that clients of vLLM use.

`python -m firsttoken.server` starts it. One thread runs the engine (`runner`); the event loop in
front reads requests (`schema`, `translation`), writes answers (`answers`) and counts (`metrics`).
"""
