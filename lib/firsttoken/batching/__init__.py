"""Many requests, one model: a simulator of batching on a virtual clock.

Each file is one idea: `records` (a request, and what a step did: what simulator and engine share),
`traces` (requests as they arrive), `simulator` (a run and its options), `scheduler` (who runs in a
step), `queue` (who waits, and who is first), `progress` (which tokens came when), `speculation`
(guesses), `sweeps` (many runs) and `static` (what fixed batches waste, in closed form).
"""

from firsttoken.batching.records import Request, StepRecord
from firsttoken.batching.simulator import POLICIES, PREEMPTIONS, simulate
from firsttoken.batching.speculation import Speculation
from firsttoken.batching.static import static_utilization
from firsttoken.batching.sweeps import sweep
from firsttoken.batching.traces import bursty_trace, load_trace, poisson_trace

__all__ = [
    "POLICIES",
    "PREEMPTIONS",
    "Request",
    "Speculation",
    "StepRecord",
    "bursty_trace",
    "load_trace",
    "poisson_trace",
    "simulate",
    "static_utilization",
    "sweep",
]
