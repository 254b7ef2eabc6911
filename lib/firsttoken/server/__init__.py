"""The engine behind HTTP: the part of OpenAI's interface that clients of vLLM use.

`python -m firsttoken.server` starts it, as two processes: Python does one thing at a time in each,
and what a client costs must not cost the engine. One runs the engine (`engine_process`). In the
other an event loop reads requests (`schema`, `translation`), hands them over (`engine_client`),
writes answers (`answers`) and counts (`counters`). What the two say to each other is in `messages`.
"""
