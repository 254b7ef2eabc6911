"""Many devices, as processes of this machine: `firsttoken.parallel` run for real.

Each file is one idea: `processes` (starting them, and stopping them), `communicator` (collectives
made of messages, and what they send), `tensor`, `pipeline`, `experts`, `sequence`, `replicas` (five
ways to divide the work), `timing` (what a collective takes here) and `comparison` (a result beside
one device's).
"""

from firsttoken.parallel.parallel_torch.communicator import Communicator
from firsttoken.parallel.parallel_torch.comparison import Comparison
from firsttoken.parallel.parallel_torch.experts import (
    ExpertRun,
    Mixture,
    random_mixture,
    run_experts,
)
from firsttoken.parallel.parallel_torch.pipeline import PipelineRun, run_pipeline
from firsttoken.parallel.parallel_torch.processes import Workers, rank_of
from firsttoken.parallel.parallel_torch.replicas import ReplicaRun, serve_replicas
from firsttoken.parallel.parallel_torch.sequence import compare_sequence_parallel
from firsttoken.parallel.parallel_torch.tensor import (
    column_row,
    compare_tensor_parallel,
    split_checkpoint,
    tensor_decode_s,
    tensor_parallel_model,
)
from firsttoken.parallel.parallel_torch.timing import CollectiveTimes, time_collective

__all__ = [
    "CollectiveTimes",
    "Communicator",
    "Comparison",
    "ExpertRun",
    "Mixture",
    "PipelineRun",
    "ReplicaRun",
    "Workers",
    "column_row",
    "compare_sequence_parallel",
    "compare_tensor_parallel",
    "random_mixture",
    "rank_of",
    "run_experts",
    "run_pipeline",
    "serve_replicas",
    "split_checkpoint",
    "tensor_decode_s",
    "tensor_parallel_model",
    "time_collective",
]
