"""Many devices: what it takes to keep them together, in closed form.

Each file is one idea: `collectives` (adding up and exchanging arrays), `tensor` (a layer cut
evenly), `pipeline` (layers one after another), `memory` (what each device holds) and `planner`
(which layout is cheapest).
"""

from firsttoken.parallel.collectives import (
    RingRound,
    all_gather_bytes,
    all_gather_s,
    all_reduce_bytes,
    all_to_all_bytes,
    all_to_all_s,
    dispatch_bytes,
    fit_link,
    reduce_scatter_bytes,
    reduce_scatter_s,
    ring_all_reduce_s,
    ring_piece,
    ring_rounds,
)
from firsttoken.parallel.memory import (
    DeviceMemory,
    DeviceParams,
    Layout,
    cache_transfer_s,
    device_memory,
    device_params,
    kv_share,
    split_evenly,
    split_heads,
    stage_layers,
)
from firsttoken.parallel.pipeline import (
    Slot,
    idle_share,
    pipeline_bubble,
    pipeline_bytes,
    pipeline_step_s,
    pipeline_timeline,
)
from firsttoken.parallel.planner import (
    Serving,
    StepTime,
    Workload,
    layouts,
    pass_time,
    prefill_machines,
    rank_layouts,
    serve_layout,
)
from firsttoken.parallel.tensor import tensor_parallel_prefill, tensor_parallel_step

__all__ = [
    "DeviceMemory",
    "DeviceParams",
    "Layout",
    "RingRound",
    "Serving",
    "Slot",
    "StepTime",
    "Workload",
    "all_gather_bytes",
    "all_gather_s",
    "all_reduce_bytes",
    "all_to_all_bytes",
    "all_to_all_s",
    "cache_transfer_s",
    "device_memory",
    "device_params",
    "dispatch_bytes",
    "fit_link",
    "idle_share",
    "kv_share",
    "layouts",
    "pass_time",
    "pipeline_bubble",
    "pipeline_bytes",
    "pipeline_step_s",
    "pipeline_timeline",
    "prefill_machines",
    "rank_layouts",
    "reduce_scatter_bytes",
    "reduce_scatter_s",
    "ring_all_reduce_s",
    "ring_piece",
    "ring_rounds",
    "serve_layout",
    "split_evenly",
    "split_heads",
    "stage_layers",
    "tensor_parallel_prefill",
    "tensor_parallel_step",
]
