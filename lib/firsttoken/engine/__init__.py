"""Many requests on one model: continuous batching over a paged cache.

`Engine.submit` makes a prompt a request (`requests`) and puts it into the queue (`scheduler`).
A step: the scheduler picks who runs and gets them blocks of the pool (`blocks`), those that decode
draft tokens (`drafting`), one pass of the model reads what is new of all of them (`forward`).
Its logits become tokens (`sampler`), until a request is done: `Engine.step` returns its `Answer`.

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
