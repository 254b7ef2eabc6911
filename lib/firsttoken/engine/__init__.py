"""Many requests on one model: continuous batching over a paged cache.

`Engine.submit` makes a prompt a request (`requests`) in the queue. A step lets requests draft
(`drafting`), picks who runs (`scheduler`), with blocks of the pool (`blocks`), and reads all new
tokens in one pass (`forward`). Logits become tokens (`sampler`), and those at last an `Answer`.

Around it, `replay` sends a trace in real time, and `cost` fits what steps take, for the simulator.
"""

from firsttoken.engine.cost import MeasuredCost, fit_cost, measure_cost, record_steps
from firsttoken.engine.engine import Engine
from firsttoken.engine.replay import decision_margins, serve_trace
from firsttoken.engine.requests import Answer, QueueFull, TokenLogprobs
from firsttoken.engine.stats import EngineStats

__all__ = [
    "Answer",
    "Engine",
    "EngineStats",
    "MeasuredCost",
    "QueueFull",
    "TokenLogprobs",
    "decision_margins",
    "fit_cost",
    "measure_cost",
    "record_steps",
    "serve_trace",
]
