"""The same under PyTorch's own launcher, on one host or several.

torchrun --nproc-per-node 2 -m firsttoken.parallel.parallel_torch

The launcher starts the processes and tells each who it is; they meet through its environment. The
first one prints how far the logits of all are from those of one.
"""

import torch
import torch.distributed as dist

from firsttoken.models.llama_torch import Llama
from firsttoken.parallel.parallel_torch.communicator import Communicator
from firsttoken.parallel.parallel_torch.tensor import model_directory, tensor_logits


def main() -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    comm = Communicator(range(dist.get_world_size()))
    tokens, directory = [list(range(5, 37))], model_directory("target")
    logits, sent = tensor_logits(comm, directory, tokens)
    if comm.rank == 0:
        alone = Llama.from_pretrained(directory)(tokens).numpy()
        difference = abs(logits - alone).max()
        print(f"{comm.n} processes, max |difference| {difference:.1e}, sent by the first: {sent}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
